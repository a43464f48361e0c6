"""A request while it waits, and while it runs."""

import math
from dataclasses import dataclass, field

from anespec.runtime.engine.planner import PlannedRow, RowDemand
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.statistics import RequestCounts
from anespec.runtime.passes import RowKind
from anespec.runtime.sampling import Sampler


@dataclass(eq=False)
class WaitingRequest:
    """A request in the queue, `since` when it was asked for; `paused` is what ran of it before."""

    number: int
    request: Request
    prompt: list[int]
    sampler: Sampler
    since: float
    paused: "ActiveSequence | None" = None

    @property
    def tokens(self) -> list[int]:
        """The rows to compute before its next token."""
        return self.prompt if self.paused is None else self.paused.tokens

    @property
    def deadline(self) -> float:
        """When its time is over; infinite where it has no limit."""
        if self.paused is not None:
            return self.paused.deadline
        seconds = self.request.seconds
        return math.inf if seconds is None else self.since + seconds

    def end(self, now: float, finish: FinishReason, error: str | None = None) -> Event:
        """Its last event, where it ends at `now`; its only one where it has not run."""
        if self.paused is not None:
            return Event(self.number, self.paused.stats.snapshot(), finish=finish, error=error)
        stats = RequestCounts(len(self.prompt), queue_seconds=now - self.since)
        return Event(self.number, stats.snapshot(), finish=finish, error=error)


@dataclass(eq=False)
class ActiveSequence:
    """A sequence that has a region, where the K/V of its first `computed` tokens stands.

    `tokens` are committed: the prompt, then the output. `forced` must follow them, as the grammar says, and
    are committed once the row before them has run. Rows of positions before `prefill_end` are prompt rows.
    `since` is when it was admitted, or when its first token came, once it `has_begun`; its time is over at
    `deadline`.
    """

    number: int
    request: Request
    sampler: Sampler
    stats: RequestCounts
    region: int
    limit: int
    finish_at_limit: FinishReason
    tokens: list[int]
    computed: int
    prefill_end: int
    since: float
    deadline: float
    forced: list[int] = field(default_factory=list)
    has_begun: bool = False

    @property
    def in_prefill(self) -> bool:
        """Whether prompt rows remain to run."""
        return self.computed < self.prefill_end

    @property
    def demand(self) -> RowDemand:
        """The rows that are sure to be needed. The one of the last token that it may have is not."""
        known = min(len(self.tokens) + len(self.forced), self.limit - 1)
        return RowDemand(known - self.computed, self.in_prefill, self.request.tenant, self.computed)

    def scheduled_rows(self, count: int) -> tuple[PlannedRow, ...]:
        """The next `count` of those rows."""
        upcoming = [*self.tokens[self.computed :], *self.forced]
        rows = []
        for place, token in enumerate(upcoming[:count]):
            position = self.computed + place
            is_committed = position < len(self.tokens)
            kind = RowKind.CARRY if is_committed else RowKind.FORCED
            kind = RowKind.PROMPT if position < self.prefill_end else kind
            need = None
            if position >= len(self.tokens) - 1:
                is_followed = place + 1 < len(upcoming)
                need = self.sampler.need_forced if is_followed else self.sampler.need
            rows.append(PlannedRow(kind, token, need))
        return tuple(rows)

    def reset(self, reused: int = 0) -> None:
        """Note that only K/V of its first `reused` tokens may still be valid; the rest is prefilled again."""
        self.computed = reused
        self.prefill_end = len(self.tokens)

    def pause(self) -> WaitingRequest:
        """Return the sequence as a request that waits to go on."""
        return WaitingRequest(self.number, self.request, self.tokens, self.sampler, self.since, paused=self)
