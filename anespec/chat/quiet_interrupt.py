"""Keep the terminal from printing ^C into an answer."""

import contextlib
import sys
import termios
from collections.abc import Iterator

LOCAL_FLAGS = 3
"""Index of the local flags in the list of `termios.tcgetattr`."""


@contextlib.contextmanager
def unprinted_interrupt() -> Iterator[None]:
    """Turn off the echo of ^C for the block, if standard input is a terminal."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (AttributeError, OSError, ValueError, termios.error):
        yield
        return
    quiet = [*before]
    quiet[LOCAL_FLAGS] &= ~termios.ECHOCTL
    with contextlib.suppress(termios.error):
        termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)
