"""Run requests: plan a pass of all active sequences, run it, commit its tokens.

The law (DESIGN.md section 5): a row writes its K/V to the home slot of its own position; a draft is
accepted iff it equals the token sampled for that position from the row before it; nothing is rolled
back. So drafts change the number of passes, never the text.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter, thread_time

from anespec.runtime.drafters import DraftSource, TopKLogits
from anespec.runtime.engine.commit import Committed, commit_rows, look_ahead
from anespec.runtime.engine.next_pass import SequenceRows, next_pass
from anespec.runtime.engine.planner import Planner
from anespec.runtime.engine.proposals import Speculation
from anespec.runtime.engine.requests import Event, FinishReason, Request, checked_prompt
from anespec.runtime.engine.scheduler import Scheduler
from anespec.runtime.engine.sequences import ActiveSequence, WaitingRequest
from anespec.runtime.engine.statistics import PassCounts, TenantCounts
from anespec.runtime.kv.region_store import RING_BYTES, PoolLoad, RegionStore
from anespec.runtime.kv.saved_prefix import SavedPrefix
from anespec.runtime.passes import (
    PassPlan,
    PassResult,
    Row,
    RowKind,
    StateLostError,
    StateOverflowError,
    Verifier,
    VerifierShape,
)
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import Sampler
from anespec.runtime.speculation.pass_costs import CostModel
from anespec.runtime.speculation.policy import DraftPolicy
from anespec.system.errors import AnespecError, RequestError
from anespec.system.progress import idle


def count_pass(part: SequenceRows, result: Committed, was_prefill: bool, now: float) -> None:
    """Add a sequence's rows in a pass that ended at `now`, and their committed tokens, to its statistics."""
    sequence, stats = part.sequence, part.sequence.stats
    output = sum(token.kind is not RowKind.PROMPT for token in result.tokens)
    if was_prefill or output < len(result.tokens):
        stats.prompt_passes += 1
    else:
        stats.decode_passes += 1
        stats.decoded_tokens += output + (result.finish is FinishReason.STOP)
    stats.output_tokens += output
    stats.forced_tokens += sum(token.kind is RowKind.FORCED for token in result.tokens)
    stats.count_draft(part.draft.source, len(part.draft.tokens), result.accepted)
    stats.remembered_tokens += result.accepted if part.draft.remembered else 0
    if sequence.has_begun:
        stats.decode_seconds = now - sequence.since
        return
    stats.prefill_seconds = now - sequence.since
    if output:
        sequence.has_begun, sequence.since = True, now


_log = logging.getLogger(__name__)

MAX_LOSSES = 3
"""Losses of the state in a row, without a committed token between them, after which the running sequences
end as FAILED."""


GATHER_SHARE = 0.03
"""The limit of an idle engine's wait for further requests, as a share of its first pass's time. Four requests
of 100 tokens that four clients sent at once came within 8 ms, and the first pass takes 560 ms."""


class Engine:
    """The loop that runs requests on a verifier: one in each usable region; the others wait in a queue.

    Not safe for use from several threads at once, except for `prepare`, `clock`, and the properties of sizes
    and loads. `clock` returns seconds. `counts` has the counts of passes and rows, `counts_of` by tenant.
    """

    def __init__(
        self,
        verifier: Verifier,
        proven: Proven,
        source: DraftSource | None = None,
        *,
        costs: CostModel | None = None,
        repetition_filter: float = 0.0,
        min_draft_len: int | None = None,
        ring_bytes: int = RING_BYTES,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Use the features that are `proven` for the verifier, and drafts of `source` if they are.

        `costs` decide which drafts are worth their rows, and learn the time of every pass. For
        `repetition_filter` and `min_draft_len` see DraftPolicy. `ring_bytes` is the budget for saved ring
        states (see RingStates). `clock` returns seconds; it also replaces the time that a thread computes,
        after which drafts are late.
        """
        self._verifier = verifier
        self._shape = verifier.shape
        computing = clock or thread_time
        self.clock = clock = clock or perf_counter
        self.counts = PassCounts()
        self.counts_of = TenantCounts()
        self._source = source
        self._policy = DraftPolicy(
            verifier.shape.block,
            proven.widths,
            costs,
            min_draft_len=min_draft_len,
            repetition_filter=repetition_filter,
        )
        self._planner = Planner(verifier.shape, proven, self._policy)
        self._store = RegionStore(verifier, proven, ring_bytes)
        self._scheduler = Scheduler(verifier.shape, self._store, proven.reuse_prefixes, clock)
        self._speculation = Speculation(
            source if proven.speculate else None,
            self._policy,
            verifier.shape.vocabulary,
            clock,
            computing,
        )
        self._speculates = proven.speculate
        self._numbers = itertools.count()
        self._losses = 0
        # Events stay here until a step returns them, so that a step that fails loses none.
        self._events: list[Event] = []

    @property
    def shape(self) -> VerifierShape:
        """The verifier's sizes."""
        return self._shape

    @property
    def capacity(self) -> int:
        """The number of sequences that can run at a time."""
        return self._store.capacity

    @property
    def active(self) -> int:
        """The number of running sequences."""
        return self._scheduler.count

    def running(self, tenant: str) -> int:
        """Return the number of a tenant's running sequences."""
        return self._scheduler.running(tenant)

    @property
    def pools(self) -> tuple[PoolLoad, ...]:
        """The load of each pool of the state."""
        return self._store.loads

    @property
    def busy(self) -> bool:
        """Whether a step has work to do."""
        return bool(self._scheduler.waiting or self._scheduler.active or self._events)

    @property
    def hold_seconds(self) -> float:
        """The seconds to wait for another request before the next step, so that it goes first or with others.

        A request that goes first: see Scheduler.hold_seconds. With others: requests of a burst should begin
        in the same pass. Once one of them waits for a token, the prompts of the rest run in narrow passes.
        """
        return self._scheduler.hold_seconds or self._gather_seconds()

    def use(self, proven: Proven, costs: CostModel | None = None) -> None:
        """Use newly proven features and costs from the next pass on; nothing may be proven less than before.

        Running sequences go on where they are, from now on with drafts if those are proven.
        """
        self._policy.use(proven.widths, costs)
        self._planner = Planner(self._shape, proven, self._policy)
        self._store.use(proven)
        self._scheduler.shares_prefixes = proven.reuse_prefixes
        if proven.speculate and not self._speculates and self._source is not None:
            self._speculation.use_source(self._source)
            for sequence in self._scheduler.active:
                self._speculation.begin(sequence)
        self._speculates = proven.speculate

    def prepare(self, request: Request, sibling: WaitingRequest | None = None) -> WaitingRequest:
        """Check a request and give it a number; safe from any thread.

        `sibling` is the same request with another seed, prepared but not begun: its checks and its prepared
        sampler are reused.

        Raises:
            RequestError: the prompt is empty, longer than the context or has ids out of the vocabulary, or
                the sampling parameters do not fit the vocabulary.
        """
        if sibling is not None:
            prompt, sampler = sibling.prompt, sibling.sampler.with_seed(request.sampling.seed)
        else:
            vocabulary = self._shape.vocabulary
            prompt = checked_prompt(request, self._shape.context, vocabulary)
            sampler = Sampler(
                request.sampling, prompt, vocabulary, request.grammar_tokens, request.tenant, request.given
            )
        return WaitingRequest(next(self._numbers), request, prompt, sampler, self.clock())

    def enqueue(self, waiting: WaitingRequest) -> None:
        """Queue a prepared request."""
        self._scheduler.enqueue(waiting)

    def submit(self, request: Request) -> int:
        """Queue a request; return its sequence's number. Raises RequestError as `prepare` does."""
        waiting = self.prepare(request)
        self.enqueue(waiting)
        return waiting.number

    def cancel(self, sequence: int, reason: FinishReason = FinishReason.CANCELLED) -> Event | None:
        """End a sequence now, for example with STOP at a stop string.

        Return its last event, or None if there is no such sequence (any more). The event has the tokens of
        events that a failed step did not return. The sequence's K/V stay in its region for later prompts.
        """
        return self._end(sequence, reason)

    def abandon(self, error: str) -> tuple[Event, ...]:
        """End the active sequences as FAILED and discard the state's content; waiting requests stay queued.

        Call this after a failure of the verifier that a retry would not fix.
        """
        self._store.forget()
        numbers = [sequence.number for sequence in self._scheduler.active]
        ended = [self._end(number, FinishReason.FAILED, error) for number in numbers]
        events, self._events = [*self._events, *(event for event in ended if event is not None)], []
        return tuple(events)

    def step(self, meanwhile: Callable[[], None] = idle) -> tuple[Event, ...]:
        """End overdue sequences, admit waiting requests, run one pass and commit its tokens.

        Return the events of the sequences that got tokens or ended; a pass of prompt rows alone yields none.
        `meanwhile` is called while the pass runs. If the verifier raises, nothing was committed and the step
        can be called again. After a StateLostError the step recovers: all sequences are prefilled again.
        """
        try:
            self._end_overdue()
            for admitted in self._scheduler.admit():
                if isinstance(admitted, Event):
                    self._events.append(admitted)
                else:
                    self._begin(admitted)
            if self._scheduler.active:
                self._run_pass(meanwhile)
        except StateLostError as error:
            self._recover(error)
        events, self._events = tuple(self._events), []
        return events

    def generate(self, request: Request) -> Iterator[Event]:
        """Run one request on an idle engine; yield its events, the last with a finish reason.

        Closing the iterator cancels the sequence. For several requests at once use `submit` and `step`.

        Raises:
            RequestError: as `submit` does, or the engine is busy; both at the first event.
        """
        if self.busy:
            raise RequestError("the engine is busy with another request; wait for it to end")
        number = self.submit(request)
        try:
            while self.busy:
                yield from self.step()
        finally:
            self.cancel(number)

    def save_prefix(self, prompt: Sequence[int], tenant: str = "") -> SavedPrefix | None:
        """Return a copy of the K/V of a tenant's prompt; None if no region holds them."""
        try:
            return self._store.save(prompt, tenant)
        except StateLostError as error:
            self._recover(error)
            return None

    def restore_prefix(self, saved: SavedPrefix, tenant: str = "") -> bool:
        """Load a saved prefix for a tenant's later prompts; return whether it fits (see RegionStore)."""
        try:
            return self._store.restore(saved, tenant)
        except StateLostError as error:
            self._recover(error)
            return False

    def close(self) -> None:
        """End all sequences and close their draft sessions; the caller closes verifier and source."""
        for sequence in self._scheduler.active:
            self._end(sequence.number, FinishReason.CANCELLED)
        self._speculation.close()

    def _gather_seconds(self) -> float:
        first = self._scheduler.first_of_burst
        if first is None:
            return 0.0
        rows = len(first.tokens) - self._store.reusable(first.tokens, first.request.tenant)
        delay = GATHER_SHARE * self._policy.pass_seconds(rows)
        return max(0.0, first.since + delay - self.clock())

    def _end_overdue(self) -> None:
        for number in self._scheduler.overdue():
            self._end_now(number, FinishReason.TIME)

    def _begin(self, sequence: ActiveSequence) -> None:
        """Prepare a sequence that was admitted; end it at once if its grammar fails."""
        try:
            look_ahead(sequence)
        except AnespecError as error:
            self._end_now(sequence.number, FinishReason.FAILED, str(error))
            return
        self._speculation.begin(sequence)

    def _run_pass(self, meanwhile: Callable[[], None]) -> None:
        """Plan, run and commit one pass."""
        for sequence in self._scheduler.in_turn:
            if sequence.is_over:
                # All its rows were reused, when it began or after a pause.
                self._end_now(sequence.number, sequence.finish_at_limit)
            else:
                self._begin_rows(sequence)
        if not self._scheduler.active:
            return
        parts, plan = next_pass(self._scheduler.in_turn, self._planner, self._speculation, self._policy)
        for part in parts:
            self._store.will_write(part.sequence.region, part.end)
        began = self.clock()
        self._verifier.submit(plan)
        meanwhile()
        found = self._verifier.wait()
        if (costs := self._policy.cost_model) is not None and plan.wanted:
            # A pass without the head shards is shorter, so its time is no estimate for other passes.
            costs.observe(plan.width, plan.spans[0], self.clock() - began)
        self._count(parts, plan)
        for part in parts:
            self._commit(part, found)

    def _begin_rows(self, sequence: ActiveSequence) -> None:
        """Prepare a sequence's region for its next rows; end the sequence if they cannot be computed.

        If the region loses its content, the sequence is prefilled again.
        """
        try:
            self._store.begin_rows(sequence.region, sequence.computed)
        except StateOverflowError as error:
            self._end_now(sequence.number, FinishReason.FAILED, str(error))
            self._store.scrub(sequence.region)
        except Exception:
            if (held := len(self._store.tokens(sequence.region))) < sequence.computed:
                sequence.reset(held)
            raise

    def _count(self, parts: Sequence[SequenceRows], plan: PassPlan) -> None:
        """Count a pass that was run, and for each tenant its own rows in it."""
        self.counts.count(plan)
        owned: dict[str, list[Row]] = {}
        for part in parts:
            owned.setdefault(part.sequence.request.tenant, []).extend(part.rows_of(plan))
        for tenant, rows in owned.items():
            self.counts_of.growing(tenant).count_rows(rows)

    def _commit(self, part: SequenceRows, found: PassResult) -> None:
        """Commit the tokens of a sequence's rows in a pass, as far as they are right."""
        sequence = part.sequence
        self._scheduler.took_turn(sequence)
        was_prefill, before = sequence.in_prefill, sequence.computed
        result = commit_rows(sequence, part.scheduled, part.draft, part.lane, found)
        self._store.extend(sequence.region, sequence.tokens[before : sequence.computed])
        had_begun = sequence.has_begun
        count_pass(part, result, was_prefill, self.clock())
        if sequence.has_begun and not had_begun:
            self._scheduler.begin_output(sequence)
        self.counts.accepted += result.accepted
        self.counts_of.growing(sequence.request.tenant).accepted += result.accepted
        if result.tokens:
            self._losses = 0
            self._speculation.observe(
                sequence, len(part.draft.tokens), result.accepted, result.ids, TopKLogits(result.rows)
            )
        if sequence.is_over and result.finish is None:
            result.finish = sequence.finish_at_limit
        if result.tokens or result.finish is not None:
            self._deliver(sequence, result)
        if result.finish is FinishReason.FAILED:
            # This comes last: it may raise StateLostError, which must not lose the committed tokens.
            self._store.scrub(sequence.region)

    def _deliver(self, sequence: ActiveSequence, result: Committed) -> None:
        """Add the event of a sequence's new tokens, and retire the sequence if it has finished."""
        if result.finish is not None:
            self._retire(sequence)
        snapshot = sequence.stats.snapshot()
        self._events.append(
            Event(sequence.number, snapshot, tuple(result.tokens), result.finish, result.error)
        )

    def _end_now(self, number: int, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence; its last event is returned by the current step."""
        last = self._end(number, reason, error)
        if last is not None:
            self._events.append(last)

    def _end(self, number: int, reason: FinishReason, error: str | None = None) -> Event | None:
        """End a sequence that waits or runs, or that ended in a failed step, which returned no events."""
        unreturned = [event for event in self._events if event.sequence == number]
        self._events = [event for event in self._events if event.sequence != number]
        tokens = tuple(token for event in unreturned for token in event.tokens)
        if unreturned and unreturned[-1].finish is not None:
            return replace(unreturned[-1], tokens=tokens)
        if (sequence := self._scheduler.find(number)) is not None:
            self._retire(sequence)
            return Event(number, sequence.stats.snapshot(), tokens, reason, error)
        if (waiting := self._scheduler.withdraw(number)) is not None:
            if waiting.paused is not None:
                self._speculation.end(waiting.paused)
            return waiting.end(self.clock(), reason, error)
        return None

    def _retire(self, sequence: ActiveSequence) -> None:
        self._speculation.end(sequence)
        self._scheduler.retire(sequence)

    def _recover(self, error: StateLostError) -> None:
        """Prefill every sequence again after all K/V were lost; its text stays the same."""
        _log.warning("the verifier lost its state; all sequences are prefilled again: %s", error)
        self._store.forget()
        self._losses += 1
        self.counts.states_lost += 1
        if self._losses == MAX_LOSSES:
            self._losses = 0
            reason = f"the verifier lost its state {MAX_LOSSES} times without a new token; last: {error}"
            self._events = [*self.abandon(reason)]
            return
        for sequence in self._scheduler.active:
            sequence.reset()
            sequence.stats.states_lost += 1
