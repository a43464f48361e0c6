"""Continue texts with a second model's likeliest tokens, on a thread of its own.

The model runs on an ordinary engine without drafts, which finds the longest prefix of a text that its state
holds. So a text that grew, or whose guessed end was wrong, costs only the rows of its new tokens. The
continuations are guesses, so everything may be used that could change a token.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from time import perf_counter

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, OutputToken, Request
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Verifier, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.system.errors import AnespecError

_log = logging.getLogger(__name__)

RECENT_PASSES = 9
"""The last passes whose second shortest time is the time of a pass; other load only slows passes down."""

CANDIDATES = 20
"""The likeliest tokens that are searched for one that is allowed: the most that a request reports."""

_GREEDY = SamplingParameters(logprobs=0)
_LISTED = SamplingParameters(logprobs=CANDIDATES)


def unproven(shape: VerifierShape) -> Proven:
    """Return all features of a verifier, proven or not, except drafts of its own."""
    return Proven(False, shape.widths, region_independent=True, spans=shape.spans, reuse_prefixes=True)


@dataclass(eq=False)
class Continuation:
    """The likeliest tokens after `text`, as far as they are computed: at most `most` of them.

    `probabilities[i]` is the model's own for token i, given those before it. If `allowed` is not None, only
    its tokens are taken, and probabilities are relative to them, as far as they are among the CANDIDATES
    likeliest. It `is_over` once it has all its tokens, was cancelled, or met an end: a full context, a token
    less likely than `least`, none that is allowed, or a failure, which `error` names.
    """

    text: tuple[int, ...]
    most: int
    tenant: str = ""
    allowed: frozenset[int] | None = None
    least: float = 0.0
    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    chance: float = 1.0
    is_over: bool = False
    error: str | None = None

    def take(self, token: OutputToken) -> bool:
        """Add the likeliest allowed token of a row; return whether it is the row's likeliest one.

        Without an allowed token that is likely enough the continuation is over.
        """
        found, probability = token.id, exp(token.logprob or 0.0)
        if self.allowed is not None:
            # The first allowed one is the likeliest of them.
            shared = [each for each in token.top if each.token in self.allowed]
            if not shared:
                self.is_over = True
                return False
            found = shared[0].token
            probability = 1 / sum(exp(each.logprob - shared[0].logprob) for each in shared)
        if probability < self.least:
            self.is_over = True
            return False
        self.tokens.append(found)
        self.probabilities.append(probability)
        self.chance *= probability
        self.is_over = len(self.tokens) >= self.most
        return found == token.id


MAX_FAILURES = 3
"""Failed passes in a row after which a model drafts no more."""


class Continuing:
    """A thread that continues texts with a model. Safe for use from several threads."""

    def __init__(self, verifier: Verifier, clock: Callable[[], float] = perf_counter) -> None:
        """Run passes of `verifier`, which the caller closes afterwards; `clock` returns seconds."""
        self._shape = verifier.shape
        self._map = SlotMapping.of(verifier.shape)
        self._engine = Engine(verifier, unproven(verifier.shape), clock=clock)
        self._clock = clock
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._running: dict[int, Continuation] = {}
        self._recent: deque[float] = deque(maxlen=RECENT_PASSES)
        self._least = 0.0
        self._closing = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="anespec draft model", daemon=True)
        self._thread.start()

    @property
    def vocabulary(self) -> int:
        """The number of the model's token ids."""
        return self._shape.vocabulary

    @property
    def pass_seconds(self) -> float:
        """The seconds of a pass that continues texts; 0 before there were two."""
        recent = sorted(self._recent)
        return recent[1] if len(recent) > 1 else 0.0

    def stop_below(self, chance: float) -> None:
        """End continuations whose tokens are all right with less than this probability, from now on."""
        self._least = chance

    def longest(self, text: int) -> int:
        """Return how many tokens can follow a text of `text` tokens, so that a wrong one costs no old row.

        Tokens beyond would overwrite what the next rows attend to, in a sliding window or a recurrent layer's
        chunk; 0 if the context is full.
        """
        room = self._shape.context - text
        return max(0, min(room, self._map.longest_run_from(text))) if room > 0 else 0

    def begin(self, continuation: Continuation) -> None:
        """Start to compute a continuation; what does not fit the model is over at once."""
        continuation.most = min(continuation.most, self.longest(len(continuation.text)))
        if continuation.most <= 0 or not continuation.text:
            continuation.is_over = True
            return
        self._command(lambda: self._submit(continuation), continuation)

    def cancel(self, continuation: Continuation) -> None:
        """Compute no further tokens of a continuation."""
        if not continuation.is_over:
            self._command(lambda: self._cancel(continuation), continuation)

    def wait(self, are_done: Callable[[], bool]) -> None:
        """Wait until `are_done`, which looks at continuations; it must hold once all of them are over."""
        with self._changed:
            self._changed.wait_for(are_done)

    def close(self) -> None:
        """End all continuations and the thread; a second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _command(self, command: Callable[[], None], about: Continuation) -> None:
        with self._changed:
            if self._closing or not self._thread.is_alive():
                about.is_over = True
                return
            self._commands.append(command)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while self._run_commands():
                if self._engine.busy:
                    self._step()
        finally:
            with self._changed:
                self._closing = True
                commands, self._commands = self._commands, deque()
                for command in commands:
                    command()
                for continuation in self._running.values():
                    continuation.is_over = True
                self._changed.notify_all()
            self._engine.close()

    def _run_commands(self) -> bool:
        """Run all commands, after waiting for one if there is nothing to compute; return False on closing."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._commands) or self._closing or self._engine.busy)
            while self._commands:
                self._commands.popleft()()
            return not self._closing

    def _submit(self, continuation: Continuation) -> None:
        """Queue what is missing of a continuation."""
        if continuation.is_over:
            return
        if self._failures >= MAX_FAILURES:
            self._end(continuation, "the second model cannot be run")
            return
        request = Request(
            prompt=(*continuation.text, *continuation.tokens),
            max_tokens=continuation.most - len(continuation.tokens),
            sampling=_GREEDY if continuation.allowed is None else _LISTED,
            tenant=continuation.tenant,
            speculate=False,
        )
        try:
            self._running[self._engine.submit(request)] = continuation
        except AnespecError as error:
            self._end(continuation, str(error))

    def _cancel(self, continuation: Continuation) -> None:
        for number in [each for each, running in self._running.items() if running is continuation]:
            del self._running[number]
            self._engine.cancel(number)
        self._end(continuation)

    def _end(self, continuation: Continuation, error: str | None = None) -> None:
        continuation.is_over = True
        continuation.error = continuation.error or error
        self._changed.notify_all()

    def _step(self) -> None:
        began = self._clock()
        try:
            events = self._engine.step()
            self._failures = 0
        except Exception as error:
            self._failures += 1
            if self._failures == MAX_FAILURES:
                _log.warning("the second model cannot be run, and drafts no more: %s", error)
            events = self._engine.abandon(str(error))
        took = self._clock() - began
        with self._changed:
            if any(event.tokens for event in events):
                self._recent.append(took)
            for event in events:
                if event.sequence in self._running:
                    self._note(event)
            self._changed.notify_all()

    def _note(self, event: Event) -> None:
        """Add an event's tokens to its continuation, and end or change its request if that is necessary."""
        continuation = self._running.pop(event.sequence)
        deviates = False
        for token in event.tokens:
            deviates = not continuation.take(token)
            if deviates:
                break
        continuation.error = event.error
        has_ended = event.finish is not None and not deviates
        continuation.is_over |= has_ended or continuation.chance < self._least
        if event.finish is None and (deviates or continuation.is_over):
            self._engine.cancel(event.sequence)
        if deviates and not continuation.is_over:
            self._submit(continuation)
        elif not continuation.is_over:
            self._running[event.sequence] = continuation
