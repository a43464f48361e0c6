"""Summarise several cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from anespec.validate.bench.measure import Case, Variant, Way


@dataclass(frozen=True)
class Spread:
    """One figure of each run."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The typical one."""
        return median(self.values)

    @property
    def least(self) -> float:
        """The lowest."""
        return min(self.values)

    @property
    def most(self) -> float:
        """The highest."""
        return max(self.values)


@dataclass(frozen=True)
class Figures:
    """Cases taken together, in one way of drafting and without: `plain` and `drafted` are tokens per second
    of decoding, run by run. Drafts are counted by position."""

    way: Way
    plain: Spread
    drafted: Spread
    tokens: int
    passes: int
    proposed_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]

    @property
    def tokens_per_pass(self) -> float:
        """With drafts; without, it is 1."""
        return self.tokens / self.passes

    @property
    def shares_by_position(self) -> tuple[float, ...]:
        """The share of drafts that were right at each position, of those that ran there."""
        pairs = zip(self.accepted_by_position, self.proposed_by_position, strict=True)
        return tuple(right / tried for right, tried in pairs)

    @property
    def acceptance(self) -> float:
        """Drafts that became tokens, of all that there could have been."""
        return (self.tokens_per_pass - 1) / self.way.most

    @property
    def speedup(self) -> Spread:
        """Of the runs with drafts, each over the plain one of its round: what disturbs one disturbs both."""
        pairs = zip(self.drafted.values, self.plain.values, strict=True)
        return Spread(tuple(drafted / plain for drafted, plain in pairs))


def figures_of(cases: Sequence[Case], way: Way) -> Figures | None:
    """Return the summary of cases for one way of drafting; None if no text was long enough to be timed."""
    timed = [case for case in cases if case.says_speed]
    if not timed:
        return None
    with_drafts = [next(each for each in case.drafted if each.way == way) for case in timed]
    costs = [variant.cost for variant in with_drafts]
    return Figures(
        way=way,
        plain=_speeds([case.plain for case in timed]),
        drafted=_speeds(with_drafts),
        tokens=sum(cost.decoded_tokens for cost in costs),
        passes=sum(cost.decode_passes for cost in costs),
        proposed_by_position=_added([cost.proposed_by_position for cost in costs]),
        accepted_by_position=_added([cost.accepted_by_position for cost in costs]),
    )


def _speeds(variants: Sequence[Variant]) -> Spread:
    """All tokens over all seconds, of the first runs, of the second ones and so on."""
    found = []
    for runs in zip(*(variant.runs for variant in variants), strict=True):
        tokens = sum(run.statistics.decoded_tokens for run in runs)
        found.append(tokens / sum(run.statistics.decode_seconds for run in runs))
    return Spread(tuple(found))


def _added(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
