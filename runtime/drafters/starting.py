"""A source that takes its time to start: it is compiled once per machine, and loaded in every process."""

import logging
import threading
from collections.abc import Callable, Sequence
from time import perf_counter

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, propose_each
from anespec.runtime.drafters.lookup import LookupSource

_log = logging.getLogger(__name__)

LONG = 2.0
"""Seconds from which on it is worth a line of the log."""


class StartingSource:
    """Starts a source on a thread of its own. Until it stands, and where it cannot, lookup guesses.

    Sessions stay what they were opened as. Calls come one at a time.
    """

    def __init__(self, name: str, start: Callable[[], DraftSource]) -> None:
        """`start` opens the source that is called so; it is called at once, on the thread."""
        self.name = name
        self._lookup = LookupSource()
        self._start = start
        self._source: DraftSource | None = None
        # No daemon: a process that ended in the midst of compiling might crash.
        self._thread = threading.Thread(target=self._run, name="anespec drafts")
        self._thread.start()

    @property
    def cost(self) -> DraftCost:
        """Of who guesses now."""
        return self._lookup.cost if self._source is None else self._source.cost

    def open(self, owner: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> DraftSession:
        """A session of the source once it stands, else of lookup."""
        return (self._source or self._lookup).open(owner, prompt, reference)

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
            source.close()

    def _run(self) -> None:
        began = perf_counter()
        try:
            self._source = self._start()
        except Exception as error:
            _log.warning("drafts by %s cannot be had, lookup drafts in its place: %r", self.name, error)
            return
        if (took := perf_counter() - began) > LONG:
            _log.info("drafts by %s were compiled for this processor in %.0f s", self.name, took)
