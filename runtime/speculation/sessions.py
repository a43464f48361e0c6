"""A sequence's draft session: opened, aside where that takes long, left alone where it fails, and closed."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from anespec.runtime.drafters import Draft, DraftSession, DraftSource, Outcome, TopKLogits
from anespec.runtime.speculation.sequence_policy import SequencePolicy

_log = logging.getLogger(__name__)

LONGEST_BACK_OFF = 10

LONG_TEXT = 1024
"""Tokens from which on a session is opened and closed aside, where its source allows that: passes would wait
for milliseconds, and for a text of 32,000 tokens 0.2 seconds."""


@dataclass
class BackOff:
    """Leaves something that fails alone: 2^k passes after failure k in a row."""

    failures: int = 0
    until: int = 0

    def fail(self, now: int) -> None:
        """Note a failure in pass number `now`."""
        self.until = now + 1 + (1 << min(self.failures, LONGEST_BACK_OFF))
        self.failures += 1

    def succeed(self) -> None:
        """Note that it works."""
        self.failures = 0


@dataclass
class Drafting:
    """A sequence's session, None until it is opened (again), and its proposal for the current pass.

    The first `forced` tokens of the proposal are those that the grammar forces anyway. `told` is the number
    of the text's tokens that the session has observed, or will have after `opening` on another thread; while
    it `rests`, it observes nothing. `asking` is the time of its proposals for the current pass in seconds,
    None if there was none.
    """

    policy: SequencePolicy
    session: DraftSession | None = None
    opening: Future[DraftSession] | None = None
    told: int = 0
    rests: bool = False
    asking: float | None = None
    back_off: BackOff = field(default_factory=BackOff)
    proposed: Draft = field(default_factory=Draft)
    forced: int = 0


class Opener:
    """Opens and closes sessions of one source, those of long texts on a thread aside."""

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self._aside: ThreadPoolExecutor | None = None

    def open(
        self, drafting: Drafting, tenant: str, tokens: Sequence[int], reference: Sequence[int]
    ) -> DraftSession | None:
        """A session that knows all these tokens, None while it is opened aside; raises as the source does."""
        is_long = len(tokens) + len(reference) >= LONG_TEXT
        if drafting.opening is None:
            drafting.told = len(tokens)
            if not (self._source.cost.opens_aside and is_long):
                return self._source.open(tenant, tuple(tokens), tuple(reference) or None)
            self._aside = self._aside or ThreadPoolExecutor(1, thread_name_prefix="drafts aside")
            drafting.opening = self._aside.submit(
                self._source.open, tenant, tuple(tokens), tuple(reference) or None
            )
        if not drafting.opening.done():
            return None
        opened, drafting.opening = drafting.opening, None
        session = opened.result()
        catch_up(drafting, session, tokens)
        return session

    def let_go(self, drafting: Drafting, tokens: int, after: ThreadPoolExecutor | None = None) -> None:
        """Close the session of a text of so many tokens, or the one that is being opened.

        `after` is a thread that is still busy with it.
        """
        opening, session = drafting.opening, drafting.session
        drafting.opening = drafting.session = None
        if opening is not None:
            opening.add_done_callback(_close_opened)
        if session is None:
            return
        if after is not None:
            after.submit(_close, session)
        elif self._aside is not None and tokens >= LONG_TEXT:
            self._aside.submit(_close, session)
        else:
            _close(session)

    def close(self) -> None:
        """Wait for what is done aside."""
        if self._aside is not None:
            self._aside.shutdown()


def catch_up(drafting: Drafting, session: DraftSession, tokens: Sequence[int]) -> None:
    """Let a session observe the tokens that it has not yet observed; raises as the session does."""
    if len(tokens) > drafting.told:
        session.observe(tuple(tokens[drafting.told :]), Outcome(), TopKLogits(()))
        drafting.told = len(tokens)


def _close_opened(opening: Future[DraftSession]) -> None:
    """Close a session that is no longer needed."""
    if not opening.cancelled() and opening.exception() is None:
        _close(opening.result())


def _close(session: DraftSession) -> None:
    try:
        session.close()
    except Exception as error:
        _log.warning("a draft session could not be closed: %r", error)
