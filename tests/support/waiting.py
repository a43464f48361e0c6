"""Waits until something is so, which another thread or process brings about."""

import time
from collections.abc import Callable

from patience import PATIENCE

SECONDS_BETWEEN_LOOKS = 0.01


def until(
    is_so: Callable[[], object],
    said: Callable[[], object] = lambda: None,
    pause: float = SECONDS_BETWEEN_LOOKS,
) -> None:
    """Wait until something is so; fail with what is `said` then if it does not become so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, said()
        time.sleep(pause)
