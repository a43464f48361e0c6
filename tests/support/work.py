"""Limits the work of a block by its processor time, whatever machine that is and does beside."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

USUAL_SECONDS = 0.001
"""What the piece of work takes the processor of the machine on which the limits were chosen."""


def _piece_seconds() -> float:
    """Return the processor time of a piece of work that is always the same, and takes no memory."""
    began = time.thread_time()
    number = 1
    for _ in repeat(None, 40_000):
        number = (number + 3) & 127
    return time.thread_time() - began


@contextmanager
def limited_work(seconds: float) -> Iterator[None]:
    """Fail if the block takes so many seconds of processor time; a slower machine has longer ones.

    How slow it is is measured before the block and after it, since other programs slow a processor down too.
    """
    before = _piece_seconds()
    began = time.thread_time()
    yield
    took = time.thread_time() - began
    slowness = max(1.0, before / USUAL_SECONDS, _piece_seconds() / USUAL_SECONDS)
    assert took < seconds * slowness, f"it took {took:.2f} s, {slowness:.1f} times as slowly as usual"
