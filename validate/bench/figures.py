"""Sum up the cases of a bench run: speeds, tokens per pass and the acceptance of drafts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from anespec.validate.bench.measure import Case, Variant, Way


@dataclass(frozen=True)
class Spread:
    """One figure, measured once in each run."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median over the runs."""
        return median(self.values)

    @property
    def least(self) -> float:
        """Return the smallest value."""
        return min(self.values)

    @property
    def most(self) -> float:
        """Return the largest value."""
        return max(self.values)

    def __str__(self) -> str:
        """Return the median with its range, e.g. `1.52 (1.48-1.60)`."""
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


@dataclass(frozen=True)
class Figures:
    """The sums over several cases for one way of drafting, beside the same cases without drafts.

    `plain` (without drafts) and `drafted` are decoding speeds in tokens per second, one for each run;
    `plain_joules` and `drafted_joules` are joules per decoded token, None if they were not measured. Drafts
    are counted by their position in the draft.
    """

    way: Way
    plain: Spread
    drafted: Spread
    tokens: int
    passes: int
    proposed_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    plain_joules: Spread | None = None
    drafted_joules: Spread | None = None

    @property
    def tokens_per_pass(self) -> float:
        """Return the mean number of tokens that a pass with drafts made; without drafts it is 1."""
        return self.tokens / self.passes

    @property
    def shares_by_position(self) -> tuple[float, ...]:
        """Return, for each position in a draft, the share of the drafts run there that were right."""
        pairs = zip(self.accepted_by_position, self.proposed_by_position, strict=True)
        return tuple(right / tried for right, tried in pairs)

    @property
    def acceptance(self) -> float:
        """Return the accepted drafts divided by the most that these passes could have run."""
        return (self.tokens_per_pass - 1) / self.way.most

    @property
    def speedup(self) -> Spread:
        """Return the speed with drafts divided by the plain speed, for each round.

        Both runs of a round are close in time, so that a disturbance of the machine affects both.
        """
        pairs = zip(self.drafted.values, self.plain.values, strict=True)
        return Spread(tuple(drafted / plain for drafted, plain in pairs))


def figures_of(cases: Sequence[Case], way: Way) -> Figures | None:
    """Return the sums over the cases for one way of drafting; None if no text was long enough to be timed."""
    timed = [case for case in cases if case.is_timed]
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
        plain_joules=_joules([case.plain for case in timed]),
        drafted_joules=_joules(with_drafts),
    )


def _speeds(variants: Sequence[Variant]) -> Spread:
    """Return tokens per second of all variants together, for each run."""
    found = []
    for runs in zip(*(variant.runs for variant in variants), strict=True):
        tokens = sum(run.statistics.decoded_tokens for run in runs)
        found.append(tokens / sum(run.statistics.decode_seconds for run in runs))
    return Spread(tuple(found))


def _joules(variants: Sequence[Variant]) -> Spread | None:
    """Return joules per decoded token of all variants together, for each run; None if one is not known."""
    found = []
    for runs in zip(*(variant.runs for variant in variants), strict=True):
        used = [run.joules for run in runs if run.joules is not None]
        if len(used) < len(runs):
            return None
        found.append(sum(used) / sum(run.statistics.decoded_tokens for run in runs))
    return Spread(tuple(found))


def _added(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
