"""Count how long each owner's sequences have used a region lately; a single region is assigned by that."""

from collections.abc import Callable

HALF_LIFE = 10.0
"""Seconds after which used time counts half, so that use while nobody else waited is forgotten."""

FORGOTTEN = 1e-3
"""Fewer seconds than this are dropped."""


class OwnerSeconds:
    """The seconds of all owners, with exponential decay. Use it from one thread at a time."""

    def __init__(self, clock: Callable[[], float], half_life: float = HALF_LIFE) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._half_life = half_life
        self._taken: dict[str, tuple[float, float]] = {}
        """By owner: the seconds at the last change, and the time of that change."""

    def __len__(self) -> int:
        """Return the number of owners with seconds."""
        return len(self._taken)

    def take(self, owner: str, seconds: float) -> None:
        """Add the seconds for which an owner's sequence used a region, until now."""
        self._taken[owner] = self.of(owner) + seconds, self._clock()
        for other in [other for other in self._taken if self.of(other) < FORGOTTEN]:
            del self._taken[other]

    def of(self, owner: str) -> float:
        """Return an owner's seconds after decay."""
        seconds, when = self._taken.get(owner, (0.0, 0.0))
        return seconds * 0.5 ** ((self._clock() - when) / self._half_life) if seconds else 0.0
