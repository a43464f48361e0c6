"""Replay known outputs through a draft source, without a model, and count the passes that its drafts save.

The source is driven as the engine drives it. A session is opened with the prompt and observes the first
token, which comes from the prompt's pass; before every further pass it proposes a draft. A pass emits the
draft's tokens up to the first wrong one, and the true token in its place. A draft ends before an end token,
since no session observes end tokens.

Only the true tokens are known here: no pass runs, so `observe` gets no logits. Sources that learn from logits
(recycle, jacobi) propose nothing here; `bench run` measures them.
"""

import gc
import logging
import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from anespec.runtime.drafters import Draft, DraftSession, DraftSource, Outcome, TopKLogits
from anespec.runtime.engine.statistics import RequestCounts, RequestStats
from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN, DraftPolicy, repetition
from anespec.validate.bench.timed_source import SourceTimes, TimedSession, TimedSource
from anespec.validate.bench.traces import MAX_ANSWER_TOKENS, ReplayRequest


class RowRule(Protocol):
    """Decides how many rows run, for a sequence that is alone in its passes; the first row is the last
    token's."""

    @property
    def budget(self) -> int:
        """Return the most tokens to ask a source for."""
        ...

    def begin(self) -> None:
        """Start another sequence."""
        ...

    def chosen(self, draft: Draft) -> Draft:
        """Return the part of a draft that runs."""
        ...

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Learn from the tokens that followed, after a draft was proposed for them."""
        ...

    def seconds(self, rows: int) -> float:
        """Return the cost in seconds of a pass with that many rows; 0 if it is not known."""
        ...


@dataclass(frozen=True)
class WholeBlocks:
    """Runs every draft that fits a block beside the last token's row."""

    block: int

    @property
    def budget(self) -> int:
        """Return all rows of a block but the last token's."""
        return self.block - 1

    def begin(self) -> None:
        """Do nothing: the rule is the same for all sequences."""

    def chosen(self, draft: Draft) -> Draft:
        """Return the whole draft."""
        return draft

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Do nothing: the rule learns nothing."""

    def seconds(self, rows: int) -> float:
        """Return 0: the cost is not known."""
        return 0.0


@dataclass
class PayingRows:
    """Runs as many drafts as the engine's policy does with known costs of passes, without spans or changes of
    width."""

    block: int
    costs: PassCosts

    def __post_init__(self) -> None:
        self._policy = DraftPolicy(self.block, [cost.width for cost in self.costs.widths], self.costs)
        self.begin()

    @property
    def budget(self) -> int:
        """Return the most tokens that can pay, limited by the sequence's own acceptance."""
        return min(self._max_rows, MAX_DRAFT_LEN, self._sequence.draft_len)

    def begin(self) -> None:
        """Start a sequence with nothing of the last one but the calibration of its probabilities."""
        self._sequence = self._policy.begin()

    def chosen(self, draft: Draft) -> Draft:
        """Return the part of the draft that makes the most tokens per second."""
        (count,) = self._policy.choose([self._sequence.estimated(draft)], 1, self._max_rows)
        return draft.first(count)

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Update the estimate of acceptance, also from drafts that were not run."""
        self._sequence.learn(proposed, committed)

    def seconds(self, rows: int) -> float:
        """Return the cost of the narrowest pass that holds the rows."""
        return self.costs.seconds(self._policy.width(rows), 0)

    @property
    def _max_rows(self) -> int:
        return self._policy.max_draft_rows(1, 1, 0)


_UNCOUNTED_TYPES = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    logging.Logger,
)
"""Types whose objects exist once in a process; `held_bytes` neither counts nor follows them."""


def held_bytes(roots: Iterable[object]) -> int:
    """Return the bytes of all Python objects that can be reached from `roots`, each counted once.

    Arrays count with their buffers. Compiled code, classes and modules do not count.
    """
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    total = 0
    while waiting:
        each = waiting.pop()
        if (
            id(each) in seen
            or isinstance(each, _UNCOUNTED_TYPES)
            or type(each).__module__.startswith("numba")
        ):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray) and isinstance(each.base, np.ndarray):
            waiting.append(each.base)
        elif isinstance(each, np.ndarray):
            total += each.nbytes
        else:
            total += sys.getsizeof(each)
            waiting += gc.get_referents(each)
    return total


TENANT = ""
"""The tenant of every request of a trace."""


@dataclass(frozen=True)
class Replayed:
    """The results of a replay.

    `categories` stand in the order of the trace. The statistics count decoding alone: passes, their tokens,
    drafts by position and source, and as `decode_seconds` what the passes would have cost. `wants_rows` is
    whether the source learns from logits, which a replay does not have. `memory_bytes` is the largest size of
    the source with its open session, measured at the ends of the longest requests and of the replay.
    """

    requests: int
    categories: dict[str, RequestStats]
    overall: RequestStats
    times: SourceTimes
    memory_bytes: int
    wants_rows: bool


@dataclass
class Replay:
    """A replay in progress: requests go one after another through one source, or through none.

    `rule` says how many rows a pass has. `cut` is the number of tokens at which outputs were cut, like the
    engine's `max_tokens`. Nothing is drafted for prompts whose repetition is below `repetition_filter`.
    """

    source: DraftSource | None
    rule: RowRule
    cut: int = MAX_ANSWER_TOKENS
    repetition_filter: float = 0.0
    _requests: int = 0
    _overall: RequestCounts = field(default_factory=lambda: RequestCounts(0))
    _categories: dict[str, RequestCounts] = field(default_factory=dict)
    _longest: int = -1
    _memory: int = 0
    _wants_rows: bool = False

    def __post_init__(self) -> None:
        self._timed = TimedSource(self.source) if self.source is not None else None

    def warm(self, requests: Iterable[ReplayRequest]) -> None:
        """Replay requests into the source's memory without counting them."""
        unseen = Replay(self.source, self.rule, self.cut, self.repetition_filter)
        for request in requests:
            unseen.add(request)

    def add(self, request: ReplayRequest) -> None:
        """Replay one request and count all tokens that it emits but the first."""
        self._requests += 1
        session = self._open(request.prompt)
        output, place = request.output, 1
        self.rule.begin()
        _observe(session, _heard(output[:1], request.end), Outcome())
        tallies = (self._overall, self._categories.setdefault(request.category, RequestCounts(0)))
        while place < len(output):
            proposed = self._draft(session, self.cut - place - 1, request.end)
            draft = self.rule.chosen(proposed)
            accepted = _agreeing(draft.tokens, output[place : place + len(draft.tokens)])
            emitted = output[place : place + accepted + 1]
            for tally in tallies:
                tally.decode_passes += 1
                tally.decoded_tokens += len(emitted)
                tally.decode_seconds += self.rule.seconds(1 + len(draft.tokens))
                tally.count_draft(draft.source, len(draft.tokens), accepted)
            heard = _heard(emitted, request.end)
            self.rule.learn(proposed, heard)
            _observe(session, heard, Outcome(draft, accepted) if draft.tokens else Outcome())
            place += len(emitted)
        if session is not None:
            # Counting takes longer than replaying: it is done where a request is longer than all before.
            if len(request.prompt) + len(output) > self._longest:
                self._longest = len(request.prompt) + len(output)
                self._memory = max(self._memory, held_bytes((self.source, session.session)))
            self._wants_rows |= session.wants_top > 0
            session.close()

    def result(self) -> Replayed:
        """Return the results so far."""
        return Replayed(
            requests=self._requests,
            categories={name: tally.snapshot() for name, tally in self._categories.items()},
            overall=self._overall.snapshot(),
            times=self._timed.times if self._timed is not None else SourceTimes(),
            memory_bytes=max(self._memory, held_bytes((self.source,)) if self.source is not None else 0),
            wants_rows=self._wants_rows,
        )

    def _open(self, prompt: Sequence[int]) -> TimedSession | None:
        if self._timed is None or (self.repetition_filter and repetition(prompt) < self.repetition_filter):
            return None
        return self._timed.open(TENANT, prompt)

    def _draft(self, session: DraftSession | None, room: int, end: int | None) -> Draft:
        """Return the part of a proposal that the engine would accept: what fits, and only tokens before an
        end token."""
        budget = min(self.rule.budget, room)
        if self._timed is None or session is None or budget < 1:
            return Draft()
        (draft,) = self._timed.propose([(session, budget)])
        tokens = draft.tokens[:budget]
        return draft.first(tokens.index(end) if end in tokens else budget)


def _heard(emitted: tuple[int, ...], end: int | None) -> tuple[int, ...]:
    """Return the tokens that become text: all but an end token."""
    return emitted[:-1] if emitted[-1:] == (end,) else emitted


def _observe(session: DraftSession | None, heard: tuple[int, ...], outcome: Outcome) -> None:
    if session is not None and heard:
        session.observe(heard, outcome, TopKLogits(()))


def _agreeing(drafted: tuple[int, ...], true: tuple[int, ...]) -> int:
    """Return how many tokens agree before the first difference."""
    pairs = zip(drafted, true, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(true))
