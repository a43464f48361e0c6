"""Ctrl-C where a library would swallow it, and other ends that somebody asked for."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ends_as_interrupts() -> Iterator[None]:
    """A closed terminal and a polite `kill` are within the block what Ctrl-C is: somebody ended this.

    For work that would else take it for a crash. Nothing changes in other threads than the main one, or where
    a signal was given another meaning before, as `nohup` does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in heard:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C within the block is heard at its end; a second one at once.

    For libraries that wrap what they call in a bare `except:`, by which KeyboardInterrupt is lost. Nothing
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
