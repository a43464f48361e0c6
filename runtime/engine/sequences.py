"""Define the state of a request while it waits, and while it runs."""

import math
from dataclasses import dataclass, field

from anespec.runtime.engine.planner import PlannedRow, RowDemand
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.statistics import RequestCounts
from anespec.runtime.passes import RowKind
from anespec.runtime.sampling import Sampler


@dataclass(eq=False)
class WaitingRequest:
    """A request in the queue since time `since`; `paused` is its sequence if it has run before."""

    number: int
    request: Request
    prompt: list[int]
    sampler: Sampler
    since: float
    paused: "ActiveSequence | None" = None

    @property
    def tokens(self) -> list[int]:
        """The tokens whose rows must be computed before its next token."""
        return self.prompt if self.paused is None else self.paused.tokens

    @property
    def deadline(self) -> float:
        """The time at which its time limit passes; infinite if it has none."""
        if self.paused is not None:
            return self.paused.deadline
        seconds = self.request.seconds
        return math.inf if seconds is None else self.since + seconds

    def end(self, now: float, finish: FinishReason, error: str | None = None) -> Event:
        """Return its last event if it ends at `now`; the event is its only one if it has not run."""
        if self.paused is not None:
            return Event(self.number, self.paused.stats.snapshot(), finish=finish, error=error)
        stats = RequestCounts(len(self.prompt), queue_seconds=now - self.since)
        return Event(self.number, stats.snapshot(), finish=finish, error=error)


@dataclass(eq=False)
class ActiveSequence:
    """A sequence that has a region, which holds the K/V of its first `computed` tokens.

    `tokens` are committed: the prompt, then the output. By the grammar `forced` must follow them; a forced
    token is committed once the row before it has run. Rows of positions before `prefill_end` are prompt rows.
    `limit` is the most tokens that the sequence may have. `since` is the time of its admission, or of its
    first token once it `has_begun`; at the time `deadline` it ends.
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
    def is_over(self) -> bool:
        """Whether it has all its tokens, and the rows before the last one are computed."""
        return len(self.tokens) == self.limit and self.computed >= self.limit - 1

    @property
    def demand(self) -> RowDemand:
        """The rows that are certain to be needed. The row of the last token before `limit` is not needed."""
        known = min(len(self.tokens) + len(self.forced), self.limit - 1)
        return RowDemand(known - self.computed, self.in_prefill, self.request.tenant, self.computed)

    def scheduled_rows(self, count: int) -> tuple[PlannedRow, ...]:
        """Return the next `count` of these rows."""
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
        """Keep the K/V of the first `reused` tokens only; the other tokens are prefilled again."""
        self.computed = reused
        self.prefill_end = len(self.tokens)

    def pause(self) -> WaitingRequest:
        """Return the sequence as a request that waits to go on."""
        return WaitingRequest(self.number, self.request, self.tokens, self.sampler, self.since, paused=self)
