"""A source that takes its time to start: it is compiled once per machine, and loaded in every process."""

import logging
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.runtime.drafters import (
    Draft,
    DraftCost,
    DraftSession,
    DraftSource,
    Outcome,
    TopKLogits,
    propose_each,
)
from anespec.runtime.drafters.kept_code import code_folder, is_compiled, note_compiled
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.drafters.memory.learner import Memory
from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment

_log = logging.getLogger(__name__)

_BETWEEN_LOOKS = 0.1
"""Seconds."""

MOST_UNTOLD = 64
"""Requests that wait for a source without a memory to learn them."""


@dataclass
class Ended:
    """A request that lookup guessed for: whose it was, its prompt, and the tokens that followed."""

    tenant: str
    prompt: list[int]
    output: list[int]


class _InterimSession:
    """A session of lookup that hands over its text at its end."""

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

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """As lookup does, and note what came."""
        self._about.output.extend(committed)
        self._session.observe(committed, outcome, rows)

    def close(self) -> None:
        """The request has ended."""
        self._session.close()
        self._tell(self._about)


class StartingSource:
    """Start a source on a separate thread.

    Until it is ready, or if it fails, lookup drafts.

    Code that is not compiled yet is compiled by another process, which the exit of this one does not wait
    for. A session keeps its source. The source also learns the requests that lookup drafted for: from its
    memory, which keeps every finished request, or, if it has no memory, when it is ready. Calls come one at a
    time.
    """

    def __init__(self, name: str, start: Callable[[], DraftSource], memory: Memory | None = None) -> None:
        """`start` opens the source that is called so, with this memory; it is called on the thread.

        The memory is closed with it.
        """
        self.name = name
        self._memory = memory
        self._lookup = LookupSource()
        self._start = start
        self._source: DraftSource | None = None
        self._untold: deque[Ended] = deque(maxlen=MOST_UNTOLD)
        self._given_up = False
        self._telling = threading.Lock()
        self._ending = threading.Event()
        # No daemon: a process that ended in the midst of loading might crash.
        self._thread = threading.Thread(target=self._run, name="anespec drafts")
        self._thread.start()

    @property
    def cost(self) -> DraftCost:
        """The cost of the current source's proposals."""
        return self._lookup.cost if self._source is None else self._source.cost

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        """Open a session of the source if it is ready, else of lookup."""
        source = self._source
        if source is None:
            session = self._lookup.open(tenant, prompt, reference)
            return _InterimSession(session, Ended(tenant, list(prompt), []), self._note)
        self._tell(source)
        return source.open(tenant, prompt, reference)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def wait(self, seconds: float | None = None) -> None:
        """Return when the source is ready or has failed, or after the given seconds."""
        self._thread.join(seconds)

    @property
    def must_compile(self) -> bool:
        """Whether the source will take some ten seconds to start, instead of less than one."""
        return self._source is None and not is_compiled(self.name)

    def close(self) -> None:
        """Close it, or give it up; called again it does nothing."""
        self._ending.set()
        self.wait()
        source, self._source = self._source, None
        if source is not None:
            self._tell(source)
            source.close()
        if self._memory is not None:
            self._memory.close()

    def _note(self, ended: Ended) -> None:
        """See to it that the source learns a request."""
        if self._given_up:
            return
        if self._memory is not None:
            text = np.array([*ended.prompt, *ended.output], np.int32)
            self._memory.keep(ended.tenant, text, len(ended.prompt))
            return
        if len(self._untold) == MOST_UNTOLD - 1:
            _log.info(
                "drafts by %s will know the last %d of the requests that end before", self.name, MOST_UNTOLD
            )
        self._untold.append(ended)

    def _tell(self, source: DraftSource) -> None:
        """Let the source learn the requests that ended before it was ready."""
        with self._telling:
            while self._untold:
                ended = self._untold.popleft()
                session = source.open(ended.tenant, ended.prompt)
                try:
                    if ended.output:
                        session.observe(ended.output, Outcome(), TopKLogits(()))
                finally:
                    session.close()

    def _run(self) -> None:
        try:
            if not is_compiled(self.name) and code_folder() is not None and not self._compiled():
                return
            source = self._start()
            note_compiled(self.name)
            # Most of it now, since the source is not used yet.
            self._tell(source)
            self._source = source
        except Exception as error:
            self._given_up = True
            _log.warning("drafts by %s cannot be had, lookup drafts in its place: %r", self.name, error)

    def _compiled(self) -> bool:
        """Compile in another process; return False if the result is no longer needed. If it fails, this
        process compiles."""
        _log.info("drafts by %s are compiled for this processor, once; lookup drafts meanwhile", self.name)
        compiling = subprocess.Popen(
            [*child_command("anespec.runtime.drafters.compiling"), self.name],
            cwd=NEUTRAL_FOLDER,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while compiling.poll() is None:
            if self._ending.wait(_BETWEEN_LOOKS):
                return False
        return True
