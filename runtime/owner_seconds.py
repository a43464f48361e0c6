"""How long each owner's sequences have lately had a region: where there is one only, it goes by that."""

from collections.abc import Callable

HALF_LIFE = 10.0
"""Seconds after which what was taken counts half: nobody pays for ever for what nobody else wanted."""

FORGOTTEN = 1e-3
"""Seconds that are as good as none."""


class OwnerSeconds:
    """The seconds of all owners, what is long ago counting less. From one thread at a time."""

    def __init__(self, clock: Callable[[], float], half_life: float = HALF_LIFE) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._half_life = half_life
        self._taken: dict[str, tuple[float, float]] = {}
        """By owner: seconds as they counted when they were last changed, and when that was."""

    def __len__(self) -> int:
        """Of how many owners anything is known."""
        return len(self._taken)

    def take(self, owner: str, seconds: float) -> None:
        """Note that an owner's sequence had a region for so long, until now."""
        self._taken[owner] = self.of(owner) + seconds, self._clock()
        for other in [other for other in self._taken if self.of(other) < FORGOTTEN]:
            del self._taken[other]

    def of(self, owner: str) -> float:
        """What counts now of the seconds that an owner has taken."""
        seconds, when = self._taken.get(owner, (0.0, 0.0))
        return seconds * 0.5 ** ((self._clock() - when) / self._half_life) if seconds else 0.0
