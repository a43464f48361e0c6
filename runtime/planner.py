"""Plan a pass: who gets how many rows, how wide it is, and which slots it looks at. Pure functions.

Every sequence brings scheduled rows, which surely become part of it: a prompt's, a carry, tokens that a
grammar forces. What is left of the pass is filled with drafts, best first.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from anespec.runtime.drafters import Draft
from anespec.runtime.passes import Need, PassPlan, Row, RowKind, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.regions import RegionMap

PROMPT_ROWS = 128
"""The most prompt rows of a pass in which somebody waits for the next token."""


@dataclass(frozen=True)
class Demand:
    """Scheduled rows that a sequence of an owner could run in the next pass, at least one."""

    rows: int
    is_prompt: bool
    owner: str = ""


@dataclass(frozen=True)
class Shares:
    """How many scheduled rows every sequence gets, and how many lanes are left for drafts."""

    rows: tuple[int, ...]
    lanes_left: int


@dataclass(frozen=True)
class PlannedRow:
    """A token to be run, and what is needed of its row's logits; None for nothing."""

    kind: RowKind
    token: int
    need: Need | None


@dataclass(frozen=True)
class Run:
    """Consecutive rows of the sequence in a region, from a position on; not empty."""

    region: int
    position: int
    rows: tuple[PlannedRow, ...]


@dataclass(frozen=True)
class LaidOut:
    """A pass, and the lane that each run begins in."""

    plan: PassPlan
    lanes: tuple[int, ...]


class Planner:
    """Plans passes for a verifier within what is proven of it. Holds sizes and no state."""

    def __init__(self, shape: VerifierShape, proven: Proven) -> None:
        self._shape = shape
        self._map = RegionMap.of(shape)
        self._widths = proven.widths
        self._spans_by_pool = usable_spans(shape, proven)

    @property
    def longest_run(self) -> int:
        """The most rows of one sequence in one pass."""
        return self._map.longest_run

    def share(self, demands: Sequence[Demand]) -> Shares:
        """How many scheduled rows each sequence gets; those whose turn it is come first.

        Everyone gets one row before anyone gets two, and where somebody is beyond the prompt no more than
        PROMPT_ROWS rows of prompts run, so that no prompt holds up another's next token. They are shared
        fairly by owners and then by each one's sequences, so that many prompts of one owner do not hold up
        another's either.
        """
        widest = self._widths[-1]
        prompt_rows = widest if all(demand.is_prompt for demand in demands) else min(widest, PROMPT_ROWS)
        wants = [min(demand.rows, self._map.longest_run) for demand in demands]
        shares = [0] * len(demands)
        left = widest
        for i, demand in enumerate(demands):
            if left and (not demand.is_prompt or prompt_rows):
                shares[i] = 1
                left -= 1
                prompt_rows -= demand.is_prompt
        for is_prompt, most in ((False, left), (True, prompt_rows)):
            chosen = [i for i, demand in enumerate(demands) if demand.is_prompt is is_prompt]
            more = owner_shares(
                [demands[i].owner for i in chosen],
                [wants[i] - shares[i] if shares[i] else 0 for i in chosen],
                min(left, most),
            )
            for i, count in zip(chosen, more, strict=True):
                shares[i] += count
            left -= sum(more)
        scheduled = sum(shares)
        return Shares(tuple(shares), max(self._shape.block, self._width(scheduled)) - scheduled)

    def lay_out(self, runs: Sequence[Run]) -> LaidOut:
        """The pass that holds these runs, one after another, in the narrowest width that does."""
        rows: list[Row] = []
        lanes: list[int] = []
        wanted: dict[int, Need] = {}
        for run in runs:
            lanes.append(len(rows))
            for position, row in enumerate(run.rows, start=run.position):
                if row.need is not None:
                    wanted[len(rows)] = row.need
                rows.append(Row(row.kind, row.token, position, self._map.slots(run.region, position)))
        plan = PassPlan(tuple(rows), self._width(len(rows)), least_spans(rows, self._spans_by_pool), wanted)
        return LaidOut(plan, tuple(lanes))

    def _width(self, rows: int) -> int:
        return next(width for width in self._widths if rows <= width)


def least_spans(rows: Sequence[Row], known: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Of the spans that are `known`, by pool and ascending, the least that hold all that the rows see."""
    spans = []
    for pool, steps in enumerate(known):
        used = max(slots.stop for row in rows for slots in row.slots[pool].visible)
        spans.append(next(span for span in steps if used <= span))
    return tuple(spans)


def usable_spans(shape: VerifierShape, proven: Proven) -> tuple[tuple[int, ...], ...]:
    """The spans that passes may have, by pool and ascending: those proven, and all slots."""
    proven_spans = proven.spans or ((),) * len(shape.pools)
    return tuple(
        tuple(span for span in shape.span_steps(pool) if span in known or span == whole)
        for pool, (known, whole) in enumerate(zip(proven_spans, shape.whole_spans, strict=True))
    )


def fair_shares(wants: Sequence[int], capacity: int) -> list[int]:
    """`capacity` shared out: nobody gets more than wanted, nor less than another who got less than wanted,
    but for the one that is left over, which goes to the earlier.
    """
    shares = [0] * len(wants)
    left = capacity
    while hungry := [i for i, want in enumerate(wants) if shares[i] < want]:
        if not left:
            break
        each = max(1, left // len(hungry))
        for i in hungry:
            more = min(each, wants[i] - shares[i], left)
            shares[i] += more
            left -= more
    return shares


def owner_shares(owners: Sequence[str], wants: Sequence[int], capacity: int) -> list[int]:
    """`capacity` shared out fairly by owners, and what each of them gets by what is theirs."""
    places: dict[str, list[int]] = {}
    for place, owner in enumerate(owners):
        places.setdefault(owner, []).append(place)
    if len(places) == 1:
        return fair_shares(wants, capacity)
    shares = [0] * len(wants)
    each = fair_shares([sum(wants[place] for place in own) for own in places.values()], capacity)
    for own, share in zip(places.values(), each, strict=True):
        for place, rows in zip(own, fair_shares([wants[place] for place in own], share), strict=True):
            shares[place] = rows
    return shares


def share_drafts(drafts: Sequence[Draft], budget: int) -> list[int]:
    """How many tokens of each sequence's draft run, `budget` in all, by highest path probability.

    A token's path probability is the chance that it and all before it are right, so it never grows
    along a chain and taking the best next token over all chains is optimal. Ties go to the earlier
    sequence. Owners have no shares here: these are lanes that nobody is sure to need, and where they go to
    another's better guesses a sequence still gets its token of every pass.
    """
    shares = [0] * len(drafts)
    heads = [(-draft.probabilities[0], i) for i, draft in enumerate(drafts) if draft.tokens]
    heapq.heapify(heads)
    for _ in range(budget):
        if not heads:
            break
        path, i = heads[0]
        shares[i] += 1
        if shares[i] < len(drafts[i].tokens):
            heapq.heapreplace(heads, (path * drafts[i].probabilities[shares[i]], i))
        else:
            heapq.heappop(heads)
    return shares
