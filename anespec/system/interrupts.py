"""Handle Ctrl-C in libraries that swallow it, and treat SIGTERM and SIGHUP like it."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ends_as_interrupts() -> Iterator[None]:
    """Within the block, treat a closed terminal (SIGHUP) and SIGTERM like Ctrl-C.

    Use it for work that would otherwise report a crash. It has no effect in threads other than the main one,
    or if a signal already has another handler, as with `nohup`.
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
    """Delay Ctrl-C to the end of the block; a second one takes effect at once.

    Use it for libraries with a bare `except:` around callbacks, which loses KeyboardInterrupt. It has no
    effect outside the main thread, or if Ctrl-C does not raise KeyboardInterrupt anyway.
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
