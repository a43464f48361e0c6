"""Give a check a part of the time while requests run: slices between two of their passes."""

from collections.abc import Callable
from time import monotonic

SHARE = 0.1
"""Seconds of each second that a check runs at least, however many requests there are."""

SLICE = 0.2
"""Seconds: a check that is owed less stays stopped, since resuming and stopping take time too."""

LONGEST_SLICE = 0.5
"""The longest time in seconds that requests wait. If a long pass makes more owed, the rest is lost."""


class CheckSlices:
    """Counts the time that a check is owed for its pauses. The caller must prevent concurrent use."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` gives seconds. Nothing is owed yet, and the check runs."""
        self._clock = clock
        self._owed = 0.0
        self._since = clock()
        self._is_stopped = False

    def stop(self) -> None:
        """Note that the check is paused from now on; the time that it has run is no longer owed."""
        if not self._is_stopped:
            self._owed = max(0.0, self._owed - (self._clock() - self._since))
            self._since, self._is_stopped = self._clock(), True

    def go_on(self) -> None:
        """Note that the check runs from now on."""
        if self._is_stopped:
            self._owed = self._owed_now
            self._since, self._is_stopped = self._clock(), False

    @property
    def due(self) -> float:
        """Seconds that the check runs now while requests wait: 0 if it is not owed a slice yet."""
        return self._owed_now if self._is_stopped and self._owed_now >= SLICE else 0.0

    @property
    def _owed_now(self) -> float:
        stood = self._clock() - self._since if self._is_stopped else 0.0
        return min(LONGEST_SLICE, self._owed + stood * SHARE / (1.0 - SHARE))
