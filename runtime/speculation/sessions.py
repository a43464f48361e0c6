"""Open and close the draft sessions of sequences, on another thread if that takes long."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from anespec.runtime.drafters import Draft, DraftSession, DraftSource, Outcome, TopKLogits
from anespec.runtime.speculation.sequence_policy import SequencePolicy

_log = logging.getLogger(__name__)

MAX_BACK_OFF_EXPONENT = 10

LONG_TEXT = 1024
"""The length in tokens from which a session is opened and closed on another thread, if its source allows
that. Otherwise passes would wait for milliseconds, and with a text of 32,000 tokens for 0.2 seconds."""


@dataclass
class BackOff:
    """The number of the pass before which something that failed is not tried again.

    After failure k in a row, 2^k passes are skipped, at most 2^MAX_BACK_OFF_EXPONENT.
    """

    failures: int = 0
    until: int = 0

    def fail(self, now: int) -> None:
        """Record a failure in pass number `now`."""
        self.until = now + 1 + (1 << min(self.failures, MAX_BACK_OFF_EXPONENT))
        self.failures += 1

    def succeed(self) -> None:
        """Record a success."""
        self.failures = 0


@dataclass
class Drafting:
    """A sequence's session, None until it is opened (again), and its proposal for the current pass.

    The first `forced` tokens of the proposal are forced by the grammar anyway. `observed` is the number of
    tokens that the session has observed, or will have once `opening` on another thread is done. A session
    that `is_resting` observes nothing. `proposal_seconds` is the time of its proposal for the current pass,
    None if there was none.
    """

    policy: SequencePolicy
    session: DraftSession | None = None
    opening: Future[DraftSession] | None = None
    observed: int = 0
    is_resting: bool = False
    proposal_seconds: float | None = None
    back_off: BackOff = field(default_factory=BackOff)
    proposed: Draft = field(default_factory=Draft)
    forced: int = 0


class Opener:
    """Opens and closes the sessions of one source, for long texts on another thread."""

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self._other_thread: ThreadPoolExecutor | None = None

    def open(
        self, drafting: Drafting, tenant: str, tokens: Sequence[int], reference: Sequence[int]
    ) -> DraftSession | None:
        """Return a session that has observed all these tokens; None while another thread opens it.

        Errors of the source are raised.
        """
        is_long = len(tokens) + len(reference) >= LONG_TEXT
        if drafting.opening is None:
            drafting.observed = len(tokens)
            if not (self._source.cost.opens_aside and is_long):
                return self._source.open(tenant, tuple(tokens), tuple(reference) or None)
            self._other_thread = self._other_thread or ThreadPoolExecutor(
                1, thread_name_prefix="drafts aside"
            )
            drafting.opening = self._other_thread.submit(
                self._source.open, tenant, tuple(tokens), tuple(reference) or None
            )
        if not drafting.opening.done():
            return None
        opened, drafting.opening = drafting.opening, None
        session = opened.result()
        catch_up(drafting, session, tokens)
        return session

    def close_session(self, drafting: Drafting, tokens: int, after: ThreadPoolExecutor | None = None) -> None:
        """Close the session of a text of `tokens` tokens, also one that is still being opened.

        If `after` is given, this thread still works on the session, and closes it afterwards.
        """
        opening, session = drafting.opening, drafting.session
        drafting.opening = drafting.session = None
        if opening is not None:
            opening.add_done_callback(_close_opened)
        if session is None:
            return
        if after is not None:
            after.submit(_close, session)
        elif self._other_thread is not None and tokens >= LONG_TEXT:
            self._other_thread.submit(_close, session)
        else:
            _close(session)

    def close(self) -> None:
        """Wait for sessions that are being opened or closed on the other thread."""
        if self._other_thread is not None:
            self._other_thread.shutdown()


def catch_up(drafting: Drafting, session: DraftSession, tokens: Sequence[int]) -> None:
    """Let a session observe the tokens that it has not yet observed; raises as the session does."""
    if len(tokens) > drafting.observed:
        session.observe(tuple(tokens[drafting.observed :]), Outcome(), TopKLogits(()))
        drafting.observed = len(tokens)


def _close_opened(opening: Future[DraftSession]) -> None:
    """Close a session whose opening has ended when it is no longer needed."""
    if not opening.cancelled() and opening.exception() is None:
        _close(opening.result())


def _close(session: DraftSession) -> None:
    try:
        session.close()
    except Exception as error:
        _log.warning("a draft session could not be closed: %r", error)
