"""Plan a pass: the rows of each sequence, the width, and the span.

Pure functions.

Every sequence brings scheduled rows, which surely become part of it: a prompt's, a carry, tokens that a
grammar forces. What is left of the pass is filled with drafts, best first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import LogitsRequest, PassPlan, Row, RowKind, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.policy import DraftPolicy


@dataclass(frozen=True)
class RowDemand:
    """Scheduled rows that a sequence of a tenant could run in the next pass, at least one.

    The first of them stands at `position`.
    """

    rows: int
    is_prompt: bool
    tenant: str = ""
    position: int = 0


@dataclass(frozen=True)
class RowShares:
    """The number of scheduled rows of every sequence, and the most lanes for drafts.

    `sure` is the value of the pass without a draft, in tokens, and `token_seconds` the time of each of those
    tokens for a waiting sequence; None if that is unknown.
    """

    rows: tuple[int, ...]
    lanes_left: int
    sure: float = 0.0
    token_seconds: float | None = None


@dataclass(frozen=True)
class PlannedRow:
    """A token to be run, and what is needed of its row's logits; None for nothing."""

    kind: RowKind
    token: int
    need: LogitsRequest | None


@dataclass(frozen=True)
class Run:
    """Consecutive rows of the sequence in a region, from a position on; not empty."""

    region: int
    position: int
    rows: tuple[PlannedRow, ...]


@dataclass(frozen=True)
class ScheduledRows:
    """A pass, and the lane that each run begins in."""

    plan: PassPlan
    lanes: tuple[int, ...]


class Planner:
    """Plans passes for a verifier within what is proven of it. Holds sizes, and the policy to ask."""

    def __init__(self, shape: VerifierShape, proven: Proven, policy: DraftPolicy | None = None) -> None:
        """`policy` decides how many draft rows a pass has, and how many prompt rows other sequences can bear;
        without one, that of unknown costs does."""
        self._policy = policy or DraftPolicy(shape.block, proven.widths)
        self._shape = shape
        self._map = SlotMapping.of(shape)
        self._widest = proven.widths[-1]
        self._spans_by_pool = usable_spans(shape, proven)

    def longest_run_from(self, position: int) -> int:
        """The most rows of one sequence in one pass, the first at `position`."""
        return self._map.longest_run_from(position)

    def reach(self, ends: Sequence[tuple[int, int]]) -> int:
        """The span of the first pool that holds the slots of regions up to these positions."""
        size = self._map.pools[0].token_slots
        last = max(self._map.slot(0, region, min(position, size - 1)) for region, position in ends)
        return next(span for span in self._spans_by_pool[0] if last < span)

    def share(self, demands: Sequence[RowDemand], span: int = 0) -> RowShares:
        """Return the number of scheduled rows of each sequence; sequences whose turn it is come first.

        Every sequence gets one row before any gets two. If a sequence is past its prompt, only so many prompt
        rows run that the pass stays short enough for its next token. They are shared fairly by tenants and
        then by each one's sequences, so that many prompts of one tenant do not delay another's either. `span`
        is the pass's span in the first pool, for its cost. Where rows are written side by side, all of them
        are the first sequence's.
        """
        policy, waiting = self._policy, sum(not demand.is_prompt for demand in demands)
        prompt_rows = policy.max_prompt_rows(waiting, span)
        everyone, demands = demands, demands[:1] if self._shape.side_by_side else demands
        wants = [min(demand.rows, self._map.longest_run_from(demand.position)) for demand in demands]
        shares = [0] * len(demands)
        left = self._widest
        for i, demand in enumerate(demands):
            if left and (not demand.is_prompt or prompt_rows):
                shares[i] = 1
                left -= 1
                prompt_rows -= demand.is_prompt
        for is_prompt, most in ((False, left), (True, prompt_rows)):
            chosen = [i for i, demand in enumerate(demands) if demand.is_prompt is is_prompt]
            more = owner_shares(
                [demands[i].tenant for i in chosen],
                [wants[i] - shares[i] if shares[i] else 0 for i in chosen],
                min(left, most),
            )
            for i, count in zip(chosen, more, strict=True):
                shares[i] += count
            left -= sum(more)
        scheduled = sum(shares)
        served = list(zip(demands, shares, strict=True))
        tokens = sum(share >= demand.rows for demand, share in served)
        of_prompts = sum(share for demand, share in served if demand.is_prompt)
        return RowShares(
            (*shares, *(0 for _ in everyone[len(demands) :])),
            policy.max_draft_rows(waiting, scheduled, span),
            tokens + policy.prompt_tokens(of_prompts, span),
            policy.token_seconds(tokens, span),
        )

    def written_to(self, run: Run, plan: PassPlan) -> int:
        """The position before which ends what a run writes in its pass, pads included where they write."""
        return run.position + (plan.width if self._shape.side_by_side else len(run.rows))

    def lay_out(self, runs: Sequence[Run]) -> ScheduledRows:
        """The pass that holds these runs, one after another, in the narrowest width that does."""
        rows: list[Row] = []
        lanes: list[int] = []
        wanted: dict[int, LogitsRequest] = {}
        for run in runs:
            lanes.append(len(rows))
            for position, row in enumerate(run.rows, start=run.position):
                if row.need is not None:
                    wanted[len(rows)] = row.need
                rows.append(Row(row.kind, row.token, position, self._map.slots(run.region, position)))
        width = self._policy.width(len(rows))
        plan = PassPlan(
            tuple(rows), width, least_spans(rows, width, self._shape, self._spans_by_pool), wanted
        )
        return ScheduledRows(plan, tuple(lanes))


def least_spans(
    rows: Sequence[Row], width: int, shape: VerifierShape, known: Sequence[Sequence[int]] | None = None
) -> tuple[int, ...]:
    """Of the spans that are `known`, by pool and ascending, the least that hold all that the rows see, and
    all that a pass of that width writes.

    Without `known` spans all of the shape's are.
    """
    spans = []
    for pool, steps in enumerate(shape.spans if known is None else known):
        used = max(slots.stop for row in rows for slots in row.slots[pool].visible)
        if shape.side_by_side:
            used = max(used, (rows[0].slots[pool].home or 0) + width)
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
    """Share `capacity`: no request gets more than it asks for, nor less than another that got less than it
    asked for, except for a remainder, which goes to the earlier ones."""
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


def owner_shares(tenants: Sequence[str], wants: Sequence[int], capacity: int) -> list[int]:
    """`capacity` shared out fairly by tenants, and what each of them gets by what is theirs."""
    places: dict[str, list[int]] = {}
    for place, tenant in enumerate(tenants):
        places.setdefault(tenant, []).append(place)
    if len(places) == 1:
        return fair_shares(wants, capacity)
    shares = [0] * len(wants)
    each = fair_shares([sum(wants[place] for place in own) for own in places.values()], capacity)
    for own, share in zip(places.values(), each, strict=True):
        for place, rows in zip(own, fair_shares([wants[place] for place in own], share), strict=True):
            shares[place] = rows
    return shares
