"""Ctrl-C where a library would swallow it."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C within the block is heard at its end; a second one at once.

    For imports: some wrap those of others in a bare `except:`, by which KeyboardInterrupt is lost. Nothing
    changes in other threads than the main one, or where Ctrl-C does not raise KeyboardInterrupt anyway.
    """
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not raises or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if heard:
            signal.default_int_handler(number, frame)
        heard.append(number)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if heard:
            raise KeyboardInterrupt
