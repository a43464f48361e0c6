"""Request proposals from the draft source, without trusting it.

A source that raises, returns invalid data or is late is not called for 2^k passes after failure k in a row.
Then it is tried again, with new sessions that get the current text of the sequences.
"""

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter, thread_time

from anespec.runtime.drafters import Draft, DraftSession, DraftSource, Outcome, TopKLogits, weigh
from anespec.runtime.engine.sequences import ActiveSequence
from anespec.runtime.speculation.policy import DraftPolicy
from anespec.runtime.speculation.sessions import BackOff, Drafting, Opener, catch_up

_log = logging.getLogger(__name__)

LATE_FACTOR = 20
LATE_FLOOR = 0.05
"""Seconds. A source is late after LATE_FACTOR times the cost that it declares, but never before this.

What counts is the time that the thread computes: on a busy machine it also waits for a processor, which is no
fault of the source."""

LATE_WAITING = 20
"""A source that waits, for example for other threads, computes nothing. It is late after this many times the
seconds of one that computes, since a busy machine makes any source wait."""

MAX_LATE = 1
"""Times in a row that a source may return its drafts late, since opening sessions again is expensive."""

_LEAST_PROBABILITY = 1e-9


class LateError(Exception):
    """The drafts did not come in time."""


@dataclass(frozen=True)
class Ask:
    """A sequence that may have `budget` draft rows after its first `forced` forced tokens."""

    sequence: ActiveSequence
    budget: int
    forced: int = 0


class Speculation:
    """A draft source with one session per sequence. Not safe for use from several threads at once."""

    def __init__(
        self,
        source: DraftSource | None,
        policy: DraftPolicy,
        vocabulary: int,
        clock: Callable[[], float] = perf_counter,
        computing: Callable[[], float] = thread_time,
    ) -> None:
        """Draft as `policy` decides, and nothing if `source` is None.

        `clock` returns seconds, `computing` the seconds that the calling thread has computed.
        """
        self._source = source
        self._policy = policy
        self._vocabulary = vocabulary
        self._clock = clock
        self._computing = computing
        self._drafting: dict[int, Drafting] = {}
        self._back_off = BackOff()
        self._passes = 0
        self._late = 0
        self._token_seconds: float | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._running: Future[list[Draft]] | None = None
        self._opener = Opener(source) if source is not None else None

    def use_source(self, source: DraftSource) -> None:
        """Use a source from now on if there was none. `begin` can then be called for running sequences."""
        if self._source is None:
            self._source, self._opener = source, Opener(source)

    def begin(self, sequence: ActiveSequence) -> None:
        """Open a session for a sequence if its request wants drafts and the policy allows them."""
        request = sequence.request
        if self._source is not None and request.speculate and self._policy.drafts_for(request.prompt):
            self._drafting[sequence.number] = Drafting(self._policy.begin())
            self._session(sequence)

    def wants_top(self, sequence: ActiveSequence) -> int:
        """Return the number of likeliest tokens per row that the sequence's session needs."""
        drafting = self._drafting.get(sequence.number)
        if drafting is None or drafting.session is None or drafting.is_resting:
            return 0
        try:
            return max(0, int(drafting.session.wants_top))
        except Exception as error:
            self._fail(sequence, error)
            return 0

    def propose(self, asks: Sequence[Ask], token_seconds: float | None = None) -> list[Draft]:
        """Return a valid draft for each ask, with estimated probabilities.

        A draft is within its budget; its tokens are in the vocabulary, are allowed by the grammar and end
        before an end token. `token_seconds` is the time of a token without drafts, None if unknown. If it is
        known, sessions that save less time than they take are asked rarely (see SequencePolicy).
        """
        self._passes += 1
        self._token_seconds = token_seconds
        if self._source is None:
            return [Draft() for _ in asks]
        sessions: list[tuple[Ask, DraftSession]] = []
        for ask in asks:
            if (drafting := self._drafting.get(ask.sequence.number)) is not None:
                drafting.proposed, drafting.forced = Draft(), 0
                drafting.proposal_seconds = None
                session = self._session(ask.sequence) if ask.budget > 0 else None
                policy = drafting.policy
                drafting.is_resting = (
                    session is not None and token_seconds is not None and not policy.may_propose()
                )
                if session is not None and not drafting.is_resting:
                    sessions.append((replace(ask, budget=min(ask.budget, policy.draft_len)), session))
        sessions = [one for one in sessions if self._catch_up(one[0].sequence)]
        if not sessions:
            return [Draft() for _ in asks]
        weigh(self._source, token_seconds)
        began = self._clock()
        found = self._ask(self._source, sessions)
        for ask, _ in sessions:
            self._drafting[ask.sequence.number].proposal_seconds = (self._clock() - began) / len(sessions)
        return [found.get(ask.sequence.number, Draft()) for ask in asks]

    def observe(
        self, sequence: ActiveSequence, ran: int, accepted: int, committed: Sequence[int], rows: TopKLogits
    ) -> None:
        """Let the session learn from a pass in which `ran` tokens of its draft ran and `accepted` were right.

        `committed` are the tokens that the pass added to the sequence, `rows` the results of its rows.
        """
        drafting = self._drafting.get(sequence.number)
        if drafting is not None:
            drafting.policy.watch(committed)
        # A session that rests observes the missed tokens at once, when it is asked again (`_catch_up`).
        before = len(sequence.tokens) - len(committed)
        is_behind = drafting is not None and drafting.session is not None and drafting.observed < before
        if drafting is None or drafting.is_resting or is_behind:
            return
        began = self._clock()
        outcome = Outcome()
        if ran:
            outcome = Outcome(drafting.proposed.first(drafting.forced + ran), drafting.forced + accepted)
        right = drafting.policy.learn(drafting.proposed.after(drafting.forced), committed[drafting.forced :])
        weighed = drafting.proposed.weighed_seconds
        drafting.proposed, drafting.forced = Draft(), 0
        if drafting.session is not None:
            try:
                drafting.session.observe(tuple(committed), outcome, rows)
                drafting.observed += len(committed)
            except Exception as error:
                self._fail(sequence, error)
        if drafting.proposal_seconds is not None and self._token_seconds is not None:
            took = drafting.proposal_seconds - weighed + self._clock() - began
            drafting.policy.charge(took, right, self._token_seconds)

    def end(self, sequence: ActiveSequence) -> None:
        """Close the sequence's session, after it has observed all of the text."""
        if sequence.number in self._drafting:
            self._catch_up(sequence)
            self._close_session(self._drafting.pop(sequence.number), len(sequence.tokens))

    def close(self) -> None:
        """Close all sessions and end the threads; the caller closes the source."""
        for drafting in self._drafting.values():
            self._close_session(drafting, 0)
        self._drafting.clear()
        if self._worker is not None:
            self._worker.shutdown(wait=False)
        if self._opener is not None:
            self._opener.close()

    def _session(self, sequence: ActiveSequence) -> DraftSession | None:
        """Return the sequence's session, and open it if there is none.

        None while the session is being opened, the source is busy, or either of them backs off.
        """
        drafting = self._drafting[sequence.number]
        is_running = self._running is not None and not self._running.done()
        if is_running or self._passes < max(self._back_off.until, drafting.back_off.until):
            return None
        if drafting.session is None and self._opener is not None:
            request = sequence.request
            try:
                drafting.session = self._opener.open(
                    drafting, request.tenant, sequence.tokens, request.reference
                )
            except Exception as error:
                self._fail(sequence, error)
        return drafting.session

    def _catch_up(self, sequence: ActiveSequence) -> bool:
        """Let the session observe the tokens that it missed while it rested; return whether it succeeded."""
        drafting = self._drafting[sequence.number]
        if drafting.session is not None:
            try:
                catch_up(drafting, drafting.session, sequence.tokens)
            except Exception as error:
                self._fail(sequence, error)
        return drafting.session is not None

    def _ask(self, source: DraftSource, sessions: Sequence[tuple[Ask, DraftSession]]) -> dict[int, Draft]:
        """Return drafts by sequence number.

        If asking for all of them at once fails, each sequence is asked for separately, to find the cause.
        """
        asks = [(session, ask.forced + ask.budget) for ask, session in sessions]
        try:
            drafts = self._in_time(source, asks)
            if len(drafts) != len(asks):
                raise ValueError(f"{len(drafts)} drafts for {len(asks)} sessions")
            found = {
                ask.sequence.number: self._validate_draft(ask, draft)
                for (ask, _), draft in zip(sessions, drafts, strict=True)
            }
        except LateError as error:
            self._back_off.fail(self._passes)
            for ask, _ in sessions:
                self._give_up(ask.sequence, error)
            return {}
        except Exception as error:
            if len(sessions) > 1:
                return {
                    number: draft
                    for one in sessions
                    if self._drafting[one[0].sequence.number].session is not None
                    for number, draft in self._ask(source, [one]).items()
                }
            self._fail(sessions[0][0].sequence, error)
            return {}
        self._back_off.succeed()
        for ask, _ in sessions:
            self._drafting[ask.sequence.number].back_off.succeed()
        return found

    def _in_time(self, source: DraftSource, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return the source's drafts.

        Raises:
            LateError: they took too long to compute, or far too long in all, more than MAX_LATE times in a
                row; or they are late on their own thread, which still computes them.
        """
        cost = source.cost
        most = max(LATE_FLOOR, LATE_FACTOR * cost.microseconds * 1e-6 * len(asks))
        if cost.off_thread:
            self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="drafts")
            self._running = self._worker.submit(source.propose, asks)
            try:
                return self._running.result(most)
            except TimeoutError:
                if not self._running.done():
                    raise LateError(f"{source.name} took more than {most:.2g} s") from None
                return self._running.result()
        began, computing_began = self._clock(), self._computing()
        drafts = source.propose(asks)
        took, computed = self._clock() - began, self._computing() - computing_began
        is_late = computed > most or took > LATE_WAITING * most
        self._late = self._late + 1 if is_late else 0
        if self._late > MAX_LATE:
            raise LateError(f"{source.name} took {took:.2g} s, more than {most:.2g}")
        return drafts

    def _validate_draft(self, ask: Ask, draft: Draft) -> Draft:
        """Return the valid part of a proposal, after the tokens that the grammar forces anyway."""
        request, tokens, claims = ask.sequence.request, [], []
        for token, claim in zip(draft.tokens[: ask.forced + ask.budget], draft.probabilities, strict=False):
            if not 0 <= token < self._vocabulary or token in request.end_ids:
                break
            tokens.append(int(token))
            claims.append(min(max(float(claim), _LEAST_PROBABILITY), 1.0) if math.isfinite(claim) else 0.0)
        if tokens[: ask.forced] != ask.sequence.forced[: ask.forced]:
            return Draft()
        allowed = ask.sequence.sampler.allows_prefix(tokens)
        claims = [max(claim, _LEAST_PROBABILITY) for claim in claims[:allowed]]
        drafting = self._drafting[ask.sequence.number]
        drafting.proposed = Draft(
            tuple(tokens[:allowed]),
            tuple(claims),
            str(draft.source),
            int(draft.order),
            bool(draft.remembered),
            float(draft.weighed_seconds),
        )
        drafting.forced = min(ask.forced, allowed)
        return drafting.policy.estimated(drafting.proposed.after(drafting.forced))

    def _fail(self, sequence: ActiveSequence, error: Exception) -> None:
        """Close a sequence's session after an error, and open none for some passes."""
        self._drafting[sequence.number].back_off.fail(self._passes)
        self._give_up(sequence, error)

    def _give_up(self, sequence: ActiveSequence, error: Exception) -> None:
        """Close a sequence's session after an error; it is opened again later."""
        _log.warning("drafts of sequence %d pause after an error: %r", sequence.number, error)
        sequence.stats.draft_failures += 1
        sequence.stats.drafter_error = repr(error)
        drafting = self._drafting[sequence.number]
        self._close_session(drafting, len(sequence.tokens))
        drafting.proposed, drafting.forced = Draft(), 0

    def _close_session(self, drafting: Drafting, tokens: int) -> None:
        """Close the session of a text of `tokens` tokens, once its source no longer works on it."""
        if self._opener is not None:
            is_running = self._running is not None and not self._running.done()
            self._opener.close_session(drafting, tokens, self._worker if is_running else None)
