"""A source that takes its time to start: it is compiled once per machine, and loaded in every process."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from anespec.runtime.drafters import (
    Draft,
    DraftCost,
    DraftSession,
    DraftSource,
    Outcome,
    RowTops,
    propose_each,
)
from anespec.runtime.drafters.lookup import LookupSource

_log = logging.getLogger(__name__)

MOST_UNTOLD = 64
"""Requests that wait for the source to learn them."""

LONG = 2.0
"""Seconds from which on it is worth a line of the log."""


@dataclass(frozen=True)
class Ended:
    """A request that lookup guessed for: whose it was, its prompt, and the tokens that followed."""

    owner: str
    prompt: list[int]
    output: list[int]


class _InterimSession:
    """A session of lookup that tells at its end what it was about."""

    def __init__(self, session: DraftSession, about: Ended, tell: Callable[[Ended], None]) -> None:
        self._session = session
        self._about = about
        self._tell = tell

    @property
    def wants_top(self) -> int:
        """As lookup's."""
        return self._session.wants_top

    def propose(self, budget: int) -> Draft:
        """As lookup does."""
        return self._session.propose(budget)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: RowTops) -> None:
        """As lookup does, and note what came."""
        self._about.output.extend(committed)
        self._session.observe(committed, outcome, rows)

    def close(self) -> None:
        """The request has ended."""
        self._session.close()
        self._tell(self._about)


class StartingSource:
    """Starts a source on a thread of its own. Until it stands, and where it cannot, lookup guesses.

    Sessions stay what they were opened as. What lookup has guessed for, the source learns once it stands.
    Calls come one at a time.
    """

    def __init__(self, name: str, start: Callable[[], DraftSource]) -> None:
        """`start` opens the source that is called so; it is called at once, on the thread."""
        self.name = name
        self._lookup = LookupSource()
        self._start = start
        self._source: DraftSource | None = None
        self._untold: deque[Ended] = deque(maxlen=MOST_UNTOLD)
        # No daemon: a process that ended in the midst of compiling might crash.
        self._thread = threading.Thread(target=self._run, name="anespec drafts")
        self._thread.start()

    @property
    def cost(self) -> DraftCost:
        """Of who guesses now."""
        return self._lookup.cost if self._source is None else self._source.cost

    def open(self, owner: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> DraftSession:
        """A session of the source once it stands, else of lookup."""
        source = self._source
        if source is None:
            session = self._lookup.open(owner, prompt, reference)
            return _InterimSession(session, Ended(owner, list(prompt), []), self._untold.append)
        self._tell(source)
        return source.open(owner, prompt, reference)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def wait(self) -> None:
        """Return when it stands, or cannot."""
        self._thread.join()

    def close(self) -> None:
        """Let it start, and close it; called again it does nothing."""
        self.wait()
        source, self._source = self._source, None
        if source is not None:
            self._tell(source)
            source.close()

    def _tell(self, source: DraftSource) -> None:
        """Have the source learn what has ended before it stood."""
        while self._untold:
            ended = self._untold.popleft()
            session = source.open(ended.owner, ended.prompt)
            try:
                if ended.output:
                    session.observe(ended.output, Outcome(), RowTops(()))
            finally:
                session.close()

    def _run(self) -> None:
        began = perf_counter()
        try:
            self._source = self._start()
        except Exception as error:
            _log.warning("drafts by %s cannot be had, lookup drafts in its place: %r", self.name, error)
            return
        if (took := perf_counter() - began) > LONG:
            _log.info("drafts by %s were compiled for this processor in %.0f s", self.name, took)
