"""A terminal that does not print ^C into what is shown."""

import contextlib
import sys
import termios
from collections.abc import Iterator

LOCAL_FLAGS = 3
"""Where termios has them among a terminal's attributes."""


@contextlib.contextmanager
def unprinted_interrupt() -> Iterator[None]:
    """Have the terminal of standard input show no ^C while the block lasts, if it is one."""
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
