"""Plan a pass: the number of rows of each sequence, the width, and the spans.

Every sequence has scheduled rows, which are certain to become part of it: prompt tokens, the last committed
token, tokens that a grammar forces. Drafts fill the rest of the pass, the likeliest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import LogitsRequest, PassPlan, Row, RowKind, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.spans import least_spans, usable_spans
from anespec.runtime.speculation.policy import DraftPolicy


@dataclass(frozen=True)
class RowDemand:
    """The scheduled rows that a sequence could run in the next pass: `rows` of them, at least one.

    The first one is at `position`.
    """

    rows: int
    is_prompt: bool
    tenant: str = ""
    position: int = 0


@dataclass(frozen=True)
class RowShares:
    """The number of scheduled rows of every sequence, and of lanes that are left for drafts.

    `sure` is the value of the pass without drafts, in tokens. `token_seconds` is the time of one such token
    for a sequence that waits for it; None if unknown.
    """

    rows: tuple[int, ...]
    lanes_left: int
    sure: float = 0.0
    token_seconds: float | None = None


@dataclass(frozen=True)
class PlannedRow:
    """A token to run, and what is needed of its row's logits; `need` is None if nothing is."""

    kind: RowKind
    token: int
    need: LogitsRequest | None


@dataclass(frozen=True)
class Run:
    """Consecutive rows of the sequence in a region, from `position` on; at least one."""

    region: int
    position: int
    rows: tuple[PlannedRow, ...]


@dataclass(frozen=True)
class ScheduledRows:
    """A pass, and the first lane of each run."""

    plan: PassPlan
    lanes: tuple[int, ...]


class Planner:
    """A planner of passes for one verifier. It uses only the widths and spans that are proven exact."""

    def __init__(self, shape: VerifierShape, proven: Proven, policy: DraftPolicy | None = None) -> None:
        """Use `policy` to limit draft rows and prompt rows; by default a policy without known costs."""
        self._policy = policy or DraftPolicy(shape.block, proven.widths)
        self._shape = shape
        self._map = SlotMapping.of(shape)
        self._widest = proven.widths[-1]
        self._spans_by_pool = usable_spans(shape, proven)

    def longest_run_from(self, position: int) -> int:
        """Return the most rows of one sequence in one pass whose first row is at `position`."""
        return self._map.longest_run_from(position)

    def reach(self, ends: Sequence[tuple[int, int]]) -> int:
        """Return the least usable span of the first pool that holds each (region, position) of `ends`."""
        size = self._map.pools[0].token_slots
        last = max(self._map.slot(0, region, min(position, size - 1)) for region, position in ends)
        return next(span for span in self._spans_by_pool[0] if last < span)

    def share(self, demands: Sequence[RowDemand], span: int = 0) -> RowShares:
        """Return the number of scheduled rows of each sequence.

        `demands` are in order of turn, and `span` is the pass's span in the first pool, which its cost
        depends on. Every sequence gets one row before any gets two. If a sequence waits for its next token,
        prompt rows are limited so that the pass stays short. Rows are shared fairly among the tenants, then
        among each tenant's sequences, so many prompts of one tenant do not delay another tenant. If rows are
        written side by side, the first sequence gets all of them.
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
            more = tenant_shares(
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
        """Return the end (exclusive) of the positions that a run writes, with those that pads write."""
        return run.position + (plan.width if self._shape.side_by_side else len(run.rows))

    def lay_out(self, runs: Sequence[Run]) -> ScheduledRows:
        """Return the narrowest pass that holds these runs, one after another."""
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


def fair_shares(wants: Sequence[int], capacity: int) -> list[int]:
    """Divide `capacity` by max-min fairness; return the shares.

    No request gets more than it wants. Requests that get less than they want get equal shares; a remainder
    goes to the earlier ones.
    """
    shares = [0] * len(wants)
    left = capacity
    while unsatisfied := [i for i, want in enumerate(wants) if shares[i] < want]:
        if not left:
            break
        each = max(1, left // len(unsatisfied))
        for i in unsatisfied:
            more = min(each, wants[i] - shares[i], left)
            shares[i] += more
            left -= more
    return shares


def tenant_shares(tenants: Sequence[str], wants: Sequence[int], capacity: int) -> list[int]:
    """Divide `capacity` fairly among the tenants, then each tenant's share among its requests.

    `tenants[i]` is the tenant of request i, which wants `wants[i]`. Return the share of each request.
    """
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
