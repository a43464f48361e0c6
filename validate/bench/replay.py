"""Replay known outputs through a draft source, without a model, and count what its drafts would have saved.

The source is driven as the engine drives it: a session is opened with the prompt, hears the first token,
which comes from the prompt's pass, and is then asked before every pass. A pass emits the draft's tokens up to
the first wrong one, and the true token in its place. A draft ends before an end token, which no session hears
of.

Only the true tokens are known here: no pass ran, so `observe` gets no rows, and sources that learn from them
(recycle, jacobi) have nothing to say. `bench run` sees what they are worth.
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
from anespec.validate.bench.traces import CUT, ReplayRequest


class RowRule(Protocol):
    """Decides for a sequence that is alone in its passes, whose first row is the carry."""

    @property
    def budget(self) -> int:
        """Tokens that are asked for at most."""
        ...

    def begin(self) -> None:
        """Another sequence begins."""
        ...

    def chosen(self, draft: Draft) -> Draft:
        """Return the part of a draft that runs."""
        ...

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """How the text went on behind which a draft was proposed."""
        ...

    def seconds(self, rows: int) -> float:
        """Return the cost of a pass with that many rows; 0 if it is not known."""
        ...


@dataclass(frozen=True)
class WholeBlocks:
    """Every draft runs that a block has room for beside the carry."""

    block: int

    @property
    def budget(self) -> int:
        """All rows but the carry's."""
        return self.block - 1

    def begin(self) -> None:
        """All sequences are alike."""

    def chosen(self, draft: Draft) -> Draft:
        """All of it."""
        return draft

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Nothing follows from it."""

    def seconds(self, rows: int) -> float:
        """Unknown."""
        return 0.0


@dataclass
class PayingRows:
    """The engine's policy if the costs of passes are known, without spans and changes of width."""

    block: int
    costs: PassCosts

    def __post_init__(self) -> None:
        self._policy = DraftPolicy(self.block, [cost.width for cost in self.costs.widths], self.costs)
        self.begin()

    @property
    def budget(self) -> int:
        """As many as may ever pay, and as far as the sequence's drafts were right."""
        return min(self._max_rows, MAX_DRAFT_LEN, self._sequence.draft_len)

    def begin(self) -> None:
        """Take nothing of the last sequence's but what its claims were worth."""
        self._sequence = self._policy.begin()

    def chosen(self, draft: Draft) -> Draft:
        """The likeliest, as many as bring most tokens per second."""
        (count,) = self._policy.choose([self._sequence.estimated(draft)], 1, self._max_rows)
        return draft.first(count)

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Claims are trusted as far as they came true, whether they were run or not."""
        self._sequence.learn(proposed, committed)

    def seconds(self, rows: int) -> float:
        """Of the narrowest pass that holds them."""
        return self.costs.seconds(self._policy.width(rows), 0)

    @property
    def _max_rows(self) -> int:
        return self._policy.max_draft_rows(1, 1, 0)


# How many bytes objects of Python hold, arrays included.

_NOBODYS = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    logging.Logger,
)
"""Objects that exist once for the whole process: neither counted nor followed."""


def held_bytes(roots: Iterable[object]) -> int:
    """Bytes of all that can be reached from `roots`, each object once; arrays with what they show.

    Compiled code, classes and modules do not count.
    """
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    total = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _NOBODYS) or type(each).__module__.startswith("numba"):
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


OWNER = ""
"""All of a trace is one tenant's."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found.

    `categories` stand in the order in which they came. The statistics count what concerns decoding alone:
    passes, the tokens that they gave, drafts by position and source, and as `decode_seconds` what the passes
    would have cost. `wants_rows` is whether the source learns from what no replay has. `memory_bytes` is the
    most that the source and its open session were seen to hold, at the ends of its longest requests and of
    the replay.
    """

    requests: int
    categories: dict[str, RequestStats]
    overall: RequestStats
    times: SourceTimes
    memory_bytes: int
    wants_rows: bool


@dataclass
class Replay:
    """A replay under way: one request after another through one source, or without any.

    `rule` says how many rows a pass has. `cut` is what the requests' outputs were cut at, as the engine's
    `max_tokens`. Nothing is drafted for prompts that repeat less than `repetition_filter` says.
    """

    source: DraftSource | None
    rule: RowRule
    cut: int = CUT
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
        """Replay what only the source's memory is to know of; nothing is counted."""
        unseen = Replay(self.source, self.rule, self.cut, self.repetition_filter)
        for request in requests:
            unseen.add(request)

    def add(self, request: ReplayRequest) -> None:
        """Replay one request; all that it emits but its first token is counted."""
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
            # Counting takes long compared with replaying a request, so only the longest so far count.
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
        return self._timed.open(OWNER, prompt)

    def _draft(self, session: DraftSession | None, room: int, end: int | None) -> Draft:
        """Return the part of a proposal that the engine would accept: what fits, and nothing from an end
        token on."""
        budget = min(self.rule.budget, room)
        if self._timed is None or session is None or budget < 1:
            return Draft()
        (draft,) = self._timed.propose([(session, budget)])
        tokens = draft.tokens[:budget]
        return draft.first(tokens.index(end) if end in tokens else budget)


def _heard(emitted: tuple[int, ...], end: int | None) -> tuple[int, ...]:
    """Return the part that becomes text: all but an end token."""
    return emitted[:-1] if emitted[-1:] == (end,) else emitted


def _observe(session: DraftSession | None, heard: tuple[int, ...], outcome: Outcome) -> None:
    if session is not None and heard:
        session.observe(heard, outcome, TopKLogits(()))


def _agreeing(drafted: tuple[int, ...], true: tuple[int, ...]) -> int:
    """How many tokens at the beginning agree."""
    pairs = zip(drafted, true, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(true))
