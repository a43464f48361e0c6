"""Rank candidates: of those that are about as fast, the first stays."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Candidate = TypeVar("Candidate")

MUCH_FASTER = 0.9
"""The share of the best time so far that a candidate must stay below if times are those of single shards
and passes, or if the candidate starts slowly."""

FASTER = 0.99
"""The same share if times are those of a whole workload, the sum of many passes."""

LONG_START = 30.0
"""The seconds to load a shard with its first passes above which a start counts as slow."""


@dataclass(frozen=True)
class Cost:
    """The time of a candidate's work in any unit, infinite if it is unusable, and its seconds to start."""

    work: float
    start: float = 0.0

    @property
    def starts_slowly(self) -> bool:
        """Return whether its start is slow."""
        return self.start >= LONG_START

    def replaces(self, best: "Cost", share: float) -> bool:
        """Return whether this takes less than `share` of the best work so far.

        A candidate that starts slowly must be much faster than one that does not.
        """
        if self.starts_slowly == best.starts_slowly:
            return self.work < best.work * share
        if self.starts_slowly:
            return self.work < best.work * MUCH_FASTER
        return math.isfinite(self.work) and self.work * MUCH_FASTER <= best.work


def best_of(candidates: Iterable[Candidate], cost: Callable[[Candidate], Cost], share: float) -> Candidate:
    """Return the first candidate, or a later one that replaces it; raises ValueError without candidates."""
    best: Candidate | None = None
    for candidate in candidates:
        if best is None or cost(candidate).replaces(cost(best), share):
            best = candidate
    if best is None:
        raise ValueError("no candidate to rank")
    return best
