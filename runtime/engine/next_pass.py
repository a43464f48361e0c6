"""Build the next pass from the scheduled rows and the drafts of the active sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anespec.runtime.drafters import Draft
from anespec.runtime.engine.planner import PlannedRow, Planner, RowShares, Run
from anespec.runtime.engine.proposals import Ask, Speculation
from anespec.runtime.engine.sequences import ActiveSequence
from anespec.runtime.passes import PassPlan, Row, RowKind
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN, DraftPolicy


@dataclass(frozen=True)
class SequenceRows:
    """A sequence's rows in a pass: `scheduled` rows from `lane` on, then the rows of `draft`.

    The pass writes the sequence's positions before `end`.
    """

    sequence: ActiveSequence
    scheduled: int
    draft: Draft
    lane: int
    end: int

    def rows_of(self, plan: PassPlan) -> tuple[Row, ...]:
        """Return the sequence's rows out of the pass that they are part of."""
        return plan.rows[self.lane : self.lane + self.scheduled + len(self.draft.tokens)]


def next_pass(
    sequences: Sequence[ActiveSequence], planner: Planner, speculation: Speculation, policy: DraftPolicy
) -> tuple[list[SequenceRows], PassPlan]:
    """Decide which rows the next pass runs; the sequences that waited longest come first."""
    span = planner.reach([(sequence.region, sequence.computed) for sequence in sequences])
    shares = planner.share([sequence.demand for sequence in sequences], span)
    drafts = speculation.propose(
        [
            _ask(sequence, count, _free_lanes(sequence, count, shares, planner))
            for sequence, count in zip(sequences, shares.rows, strict=True)
        ],
        shares.token_seconds,
    )
    lengths = policy.choose(drafts, sum(shares.rows), shares.lanes_left, shares.sure, span)
    chosen: list[tuple[ActiveSequence, int, Draft]] = []
    runs: list[Run] = []
    for sequence, count, draft, length in zip(sequences, shares.rows, drafts, lengths, strict=True):
        if count:
            part = (sequence, count, draft.first(length))
            chosen.append(part)
            runs.append(Run(sequence.region, sequence.computed, _rows(*part, speculation)))
    laid_out = planner.lay_out(runs)
    plan = laid_out.plan
    policy.ran(plan.width)
    return [
        SequenceRows(*part, lane, planner.written_to(run, plan))
        for part, run, lane in zip(chosen, runs, laid_out.lanes, strict=True)
    ], plan


def _free_lanes(sequence: ActiveSequence, count: int, shares: RowShares, planner: Planner) -> int:
    """Return the number of lanes that drafts of a sequence may have after its scheduled rows."""
    most = planner.longest_run_from(sequence.computed) - count
    return min(shares.lanes_left, MAX_DRAFT_LEN, most)


def _ask(sequence: ActiveSequence, count: int, lanes: int) -> Ask:
    """Return how many draft rows a sequence may have: drafts follow all its scheduled rows, and only tokens
    that may still become output are worth a row."""
    if count < sequence.demand.rows:
        return Ask(sequence, 0)
    forced = len(sequence.forced)
    return Ask(sequence, min(lanes, sequence.limit - len(sequence.tokens) - forced - 1), forced)


def _rows(
    sequence: ActiveSequence, count: int, draft: Draft, speculation: Speculation
) -> tuple[PlannedRow, ...]:
    """Return the sequence's rows, with the logits that its sampler and its draft session need."""
    rows = [*sequence.scheduled_rows(count)]
    rows += [PlannedRow(RowKind.DRAFT, token, sequence.sampler.need) for token in draft.tokens]
    tops = speculation.wants_top(sequence)
    if not tops:
        return tuple(rows)
    return tuple(
        row if row.need is None else replace(row, need=replace(row.need, top=max(tops, row.need.top)))
        for row in rows
    )
