"""Start a draft source in the background. Its code is compiled once per machine, and loaded by each
process."""

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

_POLL_SECONDS = 0.1

MAX_PENDING_REQUESTS = 64
"""The most requests that are kept for a source without a memory to learn them."""


@dataclass
class Ended:
    """A request that lookup drafted for: its tenant, its prompt, and its output."""

    tenant: str
    prompt: list[int]
    output: list[int]


class _InterimSession:
    """A session of lookup that passes its request to a callback at its end."""

    def __init__(self, session: DraftSession, request: Ended, on_end: Callable[[Ended], None]) -> None:
        self._session = session
        self._request = request
        self._on_end = on_end

    @property
    def wants_top(self) -> int:
        return self._session.wants_top

    def propose(self, budget: int) -> Draft:
        return self._session.propose(budget)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        self._request.output.extend(committed)
        self._session.observe(committed, outcome, rows)

    def close(self) -> None:
        self._session.close()
        self._on_end(self._request)


class StartingSource:
    """A source that starts on another thread; until it is ready, or if it fails, lookup drafts.

    Code that is not compiled yet is compiled by another process; the exit of this one does not wait for it. A
    session never changes its source. The source also learns the requests that lookup drafted for: a source
    with a memory from the memory, which keeps every finished request, another one when it is ready. Calls
    come one at a time.
    """

    def __init__(self, name: str, start: Callable[[], DraftSource], memory: Memory | None = None) -> None:
        """Call `start` on the thread, which opens the source `name` with this memory.

        The memory is closed with this source.
        """
        self.name = name
        self._memory = memory
        self._lookup = LookupSource()
        self._start = start
        self._source: DraftSource | None = None
        self._pending: deque[Ended] = deque(maxlen=MAX_PENDING_REQUESTS)
        self._given_up = False
        self._learning = threading.Lock()
        self._ending = threading.Event()
        # This is no daemon thread: a process that exits while the thread loads code might crash.
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
            return _InterimSession(session, Ended(tenant, list(prompt), []), self._keep)
        self._learn_pending(source)
        return source.open(tenant, prompt, reference)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Ask the sessions one after another."""
        return propose_each(asks)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the source is ready or has failed, at most the given seconds."""
        self._thread.join(seconds)

    @property
    def must_compile(self) -> bool:
        """Whether the source will take some ten seconds to start, instead of less than one."""
        return self._source is None and not is_compiled(self.name)

    def close(self) -> None:
        """Close the source, or stop its start; a second call does nothing."""
        self._ending.set()
        self.wait()
        source, self._source = self._source, None
        if source is not None:
            self._learn_pending(source)
            source.close()
        if self._memory is not None:
            self._memory.close()

    def _keep(self, ended: Ended) -> None:
        """Keep a request for the source to learn, in its memory or in `_pending`."""
        if self._given_up:
            return
        if self._memory is not None:
            text = np.array([*ended.prompt, *ended.output], np.int32)
            self._memory.keep(ended.tenant, text, len(ended.prompt))
            return
        if len(self._pending) == MAX_PENDING_REQUESTS - 1:
            _log.info(
                "the drafter %s will learn only the last %d of the requests that end before it is ready",
                self.name,
                MAX_PENDING_REQUESTS,
            )
        self._pending.append(ended)

    def _learn_pending(self, source: DraftSource) -> None:
        """Let the source learn the requests that ended before it was ready."""
        with self._learning:
            while self._pending:
                ended = self._pending.popleft()
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
            # Most requests are learnt now, while no session waits for the source.
            self._learn_pending(source)
            self._source = source
        except Exception as error:
            self._given_up = True
            _log.warning("the drafter %s cannot start, so lookup drafts in its place: %r", self.name, error)

    def _compiled(self) -> bool:
        """Compile in another process; return False if this source was closed meanwhile.

        If the other process fails, this process compiles when it imports the code.
        """
        _log.info("the drafter %s is compiled for this processor, once; lookup drafts meanwhile", self.name)
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
            if self._ending.wait(_POLL_SECONDS):
                return False
        return True
