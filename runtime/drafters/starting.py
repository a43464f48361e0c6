"""A source that takes its time to start: it is compiled once per machine, and loaded in every process."""

import logging
import subprocess
import threading
from collections.abc import Callable, Sequence

from anespec.manifests.child_python import child_command, child_environment
from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, propose_each
from anespec.runtime.drafters.kept_code import code_folder, is_compiled, note_compiled
from anespec.runtime.drafters.lookup import LookupSource

_log = logging.getLogger(__name__)

_BETWEEN_LOOKS = 0.1
"""Seconds."""


class StartingSource:
    """Starts a source on a thread of its own. Until it stands, and where it cannot, lookup guesses.

    What was never compiled here is compiled by another process, which this one does not wait for at its end.
    Sessions stay what they were opened as. Calls come one at a time.
    """

    def __init__(self, name: str, start: Callable[[], DraftSource]) -> None:
        """`start` opens the source that is called so; it is called on the thread."""
        self.name = name
        self._lookup = LookupSource()
        self._start = start
        self._source: DraftSource | None = None
        self._ending = threading.Event()
        # No daemon: a process that ended in the midst of loading might crash.
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

    def wait(self, seconds: float | None = None) -> None:
        """Return when it stands or cannot, or after so many seconds."""
        self._thread.join(seconds)

    @property
    def must_compile(self) -> bool:
        """Whether it stands only after some ten seconds, and not in less than one."""
        return self._source is None and not is_compiled(self.name)

    def close(self) -> None:
        """Close it, or give it up; called again it does nothing."""
        self._ending.set()
        self.wait()
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _run(self) -> None:
        try:
            if not is_compiled(self.name) and code_folder() is not None and not self._compiled():
                return
            self._source = self._start()
            note_compiled(self.name)
        except Exception as error:
            _log.warning("drafts by %s cannot be had, lookup drafts in its place: %r", self.name, error)

    def _compiled(self) -> bool:
        """Have another process compile; False where nobody waits for it any more. Where it fails, this one
        compiles."""
        _log.info("drafts by %s are compiled for this processor, once; lookup drafts meanwhile", self.name)
        compiling = subprocess.Popen(
            [*child_command("anespec.runtime.drafters.compiling"), self.name],
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
