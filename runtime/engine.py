"""Plan -> forward -> commit, for every active sequence.

The law (DESIGN.md section 5): a row writes its K/V to the home slot of its own position; a draft is
accepted iff it equals the token drawn for that position from the row before it; nothing is rolled
back. So the text does not depend on the drafts, only the number of passes does.
"""

import logging
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from anespec.manifests.errors import AnespecError, RequestError
from anespec.runtime.drafters import Draft, Drafter, Outcome
from anespec.runtime.passes import (
    Need,
    PassPlan,
    PassResult,
    Row,
    RowKind,
    Verifier,
    run_pass,
)
from anespec.runtime.prefixes import Admission, Prefixes
from anespec.runtime.regions import RegionMap, Regions
from anespec.runtime.requests import Event, FinishReason, OutputToken, Request, Statistics
from anespec.runtime.rows import chain_rows, share_certain, share_drafts
from anespec.runtime.sampling import Sampler

_log = logging.getLogger(__name__)
_LEAST_PROBABILITY = 1e-9


@dataclass
class _Waiting:
    """A request in the queue."""

    number: int
    request: Request
    prompt: list[int]
    sampler: Sampler
    statistics: Statistics
    since: float


@dataclass
class _Sequence:
    """An active sequence. The K/V of its first `computed` tokens stands in its region.

    `for_drafter` is a copy of `tokens`: whatever a drafter does to it cannot change the text.
    """

    number: int
    request: Request
    sampler: Sampler
    statistics: Statistics
    region: int
    limit: int
    finish_at_limit: FinishReason
    tokens: list[int]
    computed: int
    drafter: Drafter | None
    for_drafter: list[int]
    since: float
    in_prefill: bool = True

    @property
    def pending(self) -> int:
        """Tokens whose rows must run before the next one can be drawn."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True)
class _Part:
    """A sequence's rows in a block: `certain` ones from lane `first` on, then those of `draft`."""

    sequence: _Sequence
    first: int
    certain: int
    draft: Draft


@dataclass
class _Drawn:
    """What one pass drew for one sequence."""

    tokens: list[OutputToken] = field(default_factory=list)
    accepted: int = 0
    finish: FinishReason | None = None
    error: str | None = None


class Engine:
    """Runs requests on a verifier, as many at a time as it has regions; the others wait in a queue.

    The flags say what the exactness gate has proven for this artifact, backend and machine:

    - `speculate`: lane, neighbours, stale and partition hold, so drafts may fill rows.
    - `wide_prefill`: width holds, so passes with prompt rows may have up to t_max rows.
    - `region_independent`: region holds. Otherwise only the first region is used, one sequence
      after another, since an answer would else depend on who else is being served.
    - `reuse_prefixes`: stale and partition hold, so a prompt may go on from what an earlier one left.
      Otherwise every prompt is prefilled from its first token.

    Not safe for use from several threads at once.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        speculate: bool,
        wide_prefill: bool,
        region_independent: bool = False,
        reuse_prefixes: bool = True,
    ) -> None:
        self._verifier = verifier
        self._shape = verifier.shape
        self._speculate = speculate
        self._widths = self._shape.wide_widths if wide_prefill else (self._shape.block,)
        self._reuse_prefixes = reuse_prefixes
        self._map = RegionMap.of(self._shape)
        self._regions = Regions(self._shape.sequences if region_independent else 1)
        self._prefixes = Prefixes(self._map)
        self._queue: deque[_Waiting] = deque()
        # In order of turn: a sequence goes to the back when it had rows in a pass.
        self._active: dict[int, _Sequence] = {}
        self._submitted = 0
        # Kept here until a step returns them, so that a step that fails loses none.
        self._ended_early: list[Event] = []

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._queue or self._active or self._ended_early)

    def submit(self, request: Request) -> int:
        """Queue a request; the number of its sequence.

        Raises RequestError for a prompt that is empty, longer than the context or has ids out of
        the vocabulary, and for a bias on such an id. Nothing else is affected.
        """
        prompt = [int(token) for token in request.prompt]
        context, vocabulary = self._shape.context, self._shape.vocabulary
        if not prompt:
            raise RequestError("the prompt is empty; it needs at least one token")
        if len(prompt) > context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens but the context only {context}; "
                "shorten the prompt or convert with a longer context"
            )
        stranger = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if stranger is not None:
            raise RequestError(
                f"the prompt has token {stranger}, but the vocabulary has {vocabulary} tokens; "
                "use this model's tokenizer"
            )
        sampler = Sampler(request.sampling, prompt, vocabulary)
        number = self._submitted
        self._submitted += 1
        statistics = Statistics(prompt_tokens=len(prompt))
        self._queue.append(_Waiting(number, request, prompt, sampler, statistics, perf_counter()))
        return number

    def cancel(self, sequence: int, reason: FinishReason = FinishReason.CANCELLED) -> Event | None:
        """End a sequence now, for example with STOP at a stop string.

        Returns its last event, or None if there is no such sequence (any more). What it computed
        stays in its region for later prompts.
        """
        if sequence in self._active:
            active = self._active[sequence]
            self._retire(active)
            return Event(sequence, active.statistics, finish=reason)
        for waiting in self._queue:
            if waiting.number == sequence:
                self._queue.remove(waiting)
                return Event(sequence, waiting.statistics, finish=reason)
        return None

    def step(self) -> tuple[Event, ...]:
        """Admit what fits, run one pass, commit; the events of all sequences that got on or ended.

        A pass that ran only prompt rows yields no event. If the verifier raises, nothing was
        committed and the step can be tried again.
        """
        self._admit()
        events = self._run_pass() if self._active else []
        ended, self._ended_early = self._ended_early, []
        return (*ended, *events)

    def generate(self, request: Request) -> Iterator[Event]:
        """Run one request on an idle engine; its events as they come, the last with a finish reason.

        Closing the iterator cancels the sequence. For several requests at once use `submit` and
        `step`. Raises RequestError, at the first event, as `submit` does or if the engine is busy.
        """
        if self.busy:
            raise RequestError("the engine is busy with another request; wait for it to end")
        number = self.submit(request)
        try:
            while self.busy:
                yield from self.step()
        finally:
            self.cancel(number)

    def _admit(self) -> None:
        """Move requests from the queue to idle regions; those without room for a token end at once."""
        while self._queue and self._regions.idle:
            waiting = self._queue[0]
            waiting.statistics.queue_seconds = perf_counter() - waiting.since
            if len(waiting.prompt) == self._shape.context:
                end = Event(waiting.number, waiting.statistics, finish=FinishReason.CONTEXT)
                self._ended_early.append(end)
            else:
                self._activate(waiting, self._settle(waiting.prompt))
            self._queue.popleft()

    def _activate(self, waiting: _Waiting, admission: Admission) -> None:
        """Make an admitted request an active sequence."""
        request, prompt = waiting.request, waiting.prompt
        room = self._shape.context - len(prompt)
        wanted = room + 1 if request.max_tokens is None else request.max_tokens
        waiting.statistics.reused_tokens = admission.reused
        self._active[waiting.number] = _Sequence(
            number=waiting.number,
            request=request,
            sampler=waiting.sampler,
            statistics=waiting.statistics,
            region=admission.region,
            limit=len(prompt) + min(room, wanted),
            finish_at_limit=FinishReason.LENGTH if wanted <= room else FinishReason.CONTEXT,
            tokens=prompt,
            computed=admission.reused,
            drafter=request.drafter if self._speculate else None,
            for_drafter=prompt.copy(),
            since=perf_counter(),
        )

    def _settle(self, prompt: list[int]) -> Admission:
        """Take an idle region for `prompt`, with what can be used again of it in place."""
        idle = self._regions.idle
        admission = self._prefixes.choose(prompt, idle) if self._reuse_prefixes else Admission(idle[0], 0)
        if admission.copies:
            self._prefixes.clear(admission.region)
        for copy in admission.copies:
            self._verifier.copy_slots(copy.pool, copy.source, copy.target, copy.count)
        self._prefixes.begin(admission, prompt)
        self._regions.take(admission.region)
        return admission

    def _run_pass(self) -> list[Event]:
        """Plan -> forward -> commit, once; the events of the sequences that had rows."""
        parts = self._plan()
        plan = self._pass(parts)
        for part in parts:
            end = part.sequence.computed + part.certain + len(part.draft.tokens)
            self._prefixes.will_write(part.sequence.region, end)
        found = run_pass(self._verifier, plan)
        events = [event for part in parts if (event := self._commit(part, found)) is not None]
        for part in parts:
            self._verifier.commit(part.sequence.region, part.certain)
        return events

    def _plan(self) -> list[_Part]:
        """Decide which rows the next pass runs; those that waited longest come first."""
        sequences = list(self._active.values())
        widest = self._widths[-1]
        prefill = any(s.in_prefill for s in sequences[:widest])
        capacity = widest if prefill else self._shape.block
        certain = share_certain([s.pending for s in sequences], capacity, self._map.longest_run)
        left = max(0, self._shape.block - sum(certain))
        # Rows are left only where every certain row has one, since a run may be as long as a block.
        drafts = [self._propose(s, left) for s in sequences]
        parts = []
        first = 0
        for s, count, draft, length in zip(
            sequences, certain, drafts, share_drafts(drafts, left), strict=True
        ):
            if count:
                run = Draft(draft.tokens[:length], draft.probabilities[:length])
                parts.append(_Part(s, first, count, run))
                first += count + length
        return parts

    def _propose(self, sequence: _Sequence, left: int) -> Draft:
        """The drafter's proposal, within `left` rows and what may still become output.

        A faulty drafter loses its turn for the rest of the sequence, and nothing more.
        """
        budget = min(left, sequence.limit - len(sequence.tokens) - 1)
        if sequence.drafter is None or budget < 1:
            return Draft()
        try:
            draft = sequence.drafter.propose(sequence.for_drafter, budget)
            return self._sane(draft, budget, sequence.request.end_ids)
        except Exception as error:
            _dismiss_drafter(sequence, error)
            return Draft()

    def _sane(self, draft: Draft, budget: int, end_ids: frozenset[int]) -> Draft:
        """The part of a proposal worth running: known ids, none after an end token, a sound estimate."""
        tokens: list[int] = []
        probabilities: list[float] = []
        for token, probability in zip(draft.tokens[:budget], draft.probabilities, strict=False):
            if not 0 <= token < self._shape.vocabulary or token in end_ids:
                break
            sound = float(probability) if math.isfinite(probability) else 0.0
            tokens.append(int(token))
            probabilities.append(min(max(sound, _LEAST_PROBABILITY), 1.0))
        return Draft(tuple(tokens), tuple(probabilities))

    def _pass(self, parts: list[_Part]) -> PassPlan:
        """The rows of all parts, in the next width that a pass may have."""
        rows: list[Row] = []
        wanted: dict[int, Need] = {}
        for part in parts:
            s = part.sequence
            kind = RowKind.PROMPT if s.in_prefill else RowKind.CARRY
            drafted = s.computed + part.certain
            rows += chain_rows(self._map, s.region, s.computed, kind, s.tokens[s.computed : drafted])
            rows += chain_rows(self._map, s.region, drafted, RowKind.DRAFT, part.draft.tokens)
            if part.certain == s.pending:
                lanes = range(part.first + part.certain - 1, len(rows))
                wanted.update(dict.fromkeys(lanes, s.sampler.need))
        width = next(width for width in self._widths if len(rows) <= width)
        return PassPlan(tuple(rows), width, self._shape.whole_spans, wanted)

    def _commit(self, part: _Part, found: PassResult) -> Event | None:
        """Make a pass's certain rows and right drafts part of the sequence; its event, if any."""
        s = part.sequence
        self._active[s.number] = self._active.pop(s.number)
        was_prefill = s.in_prefill
        if was_prefill:
            s.statistics.prompt_passes += 1
        else:
            s.statistics.decode_passes += 1
        before = s.computed
        s.computed += part.certain
        drawn = None
        if s.pending == 0:
            drawn = self._draw(part, found)
        self._prefixes.extend(s.region, s.tokens[before : s.computed])
        self._count_time(s, first_token=was_prefill and drawn is not None)
        if drawn is None:
            return None
        s.in_prefill = False
        s.statistics.output_tokens += len(drawn.tokens)
        if not was_prefill:
            s.statistics.drawn_in_decode += len(drawn.tokens) + (drawn.finish is FinishReason.STOP)
        s.statistics.count_draft(len(part.draft.tokens), drawn.accepted)
        self._observe(s, part.draft, drawn)
        if drawn.finish is FinishReason.FAILED:
            self._scrub(s.region)
        if drawn.finish is not None:
            self._retire(s)
        return Event(s.number, s.statistics, tuple(drawn.tokens), drawn.finish, drawn.error)

    def _draw(self, part: _Part, found: PassResult) -> _Drawn:
        """Draw token after token, from one lane after the other, while the drafts prove right."""
        s, draft = part.sequence, part.draft.tokens
        lane = part.first + part.certain - 1
        drawn = _Drawn()
        right = True
        while right and drawn.finish is None:
            try:
                token = s.sampler.sample(found[lane + drawn.accepted], len(s.tokens)).token
            except AnespecError as error:
                drawn.finish, drawn.error = FinishReason.FAILED, str(error)
                break
            if token in s.request.end_ids:
                drawn.finish = FinishReason.STOP
                break
            right = drawn.accepted < len(draft) and draft[drawn.accepted] == token
            drawn.accepted += right
            s.computed += right
            s.tokens.append(token)
            s.sampler.accept(token)
            drawn.tokens.append(OutputToken(token, RowKind.DRAFT if right else RowKind.CARRY))
            if len(s.tokens) == s.limit:
                drawn.finish = s.finish_at_limit
        return drawn

    def _observe(self, sequence: _Sequence, draft: Draft, drawn: _Drawn) -> None:
        """Tell the drafter what became of its draft."""
        if sequence.drafter is None:
            return
        committed = tuple(token.id for token in drawn.tokens)
        sequence.for_drafter += committed
        try:
            sequence.drafter.observe(sequence.for_drafter, Outcome(draft, drawn.accepted, committed))
        except Exception as error:
            _dismiss_drafter(sequence, error)

    def _count_time(self, sequence: _Sequence, first_token: bool) -> None:
        """Bring the seconds of prefill or decode up to date."""
        now = perf_counter()
        if sequence.in_prefill:
            sequence.statistics.prefill_seconds = now - sequence.since
        else:
            sequence.statistics.decode_seconds = now - sequence.since
        if first_token:
            sequence.since = now

    def _scrub(self, region: int) -> None:
        """Zero a region's slots and forget what they held.

        A masked slot contributes 0 x its value, so one that is not a number would spoil every later
        pass, of other sequences too.
        """
        self._prefixes.clear(region)
        for number, pool in enumerate(self._shape.pools):
            first = region * pool.region_slots
            one_slot = self._verifier.export_slots(number, first, 1)
            zeros = [np.zeros_like(values).repeat(pool.region_slots, axis=2) for values in one_slot]
            self._verifier.import_slots(number, first, zeros)

    def _retire(self, sequence: _Sequence) -> None:
        """Free a sequence's region; what it holds stays until the region is needed."""
        del self._active[sequence.number]
        self._regions.release(sequence.region)


def _dismiss_drafter(sequence: _Sequence, error: Exception) -> None:
    """Go on without a drafter that raised."""
    _log.warning("sequence %d goes on without its drafter: %r", sequence.number, error)
    sequence.drafter = None
    sequence.statistics.drafter_error = repr(error)
