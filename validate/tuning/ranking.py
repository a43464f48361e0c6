"""The ranking of what was measured: of candidates that are about as fast, the first stays."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Candidate = TypeVar("Candidate")

MUCH_FASTER = 0.9
"""Share of the best time so far that a candidate must stay below where times are of single shards and passes,
or where it starts slowly."""

FASTER = 0.99
"""The same where times are of a whole workload, added up from many passes."""

LONG_START = 30.0
"""Seconds to load a shard, with its first passes, that are a price at every start."""


@dataclass(frozen=True)
class Cost:
    """What a candidate takes: the time of its work in any unit, infinite where it is unusable, and seconds to
    start."""

    work: float
    start: float = 0.0

    @property
    def starts_slowly(self) -> bool:
        """Whether every start has a price."""
        return self.start >= LONG_START

    def replaces(self, best: "Cost", share: float) -> bool:
        """Whether this takes less than `share` of what the best so far does; what starts slowly must be much
        faster than what does not."""
        if self.starts_slowly == best.starts_slowly:
            return self.work < best.work * share
        if self.starts_slowly:
            return self.work < best.work * MUCH_FASTER
        return math.isfinite(self.work) and self.work * MUCH_FASTER <= best.work


def best_of(candidates: Iterable[Candidate], cost: Callable[[Candidate], Cost], share: float) -> Candidate:
    """Return the first candidate, or a later one that replaces it; ValueError where there is none."""
    best: Candidate | None = None
    for candidate in candidates:
        if best is None or cost(candidate).replaces(cost(best), share):
            best = candidate
    if best is None:
        raise ValueError("no candidate to rank")
    return best
