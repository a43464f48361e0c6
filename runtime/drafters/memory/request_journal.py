"""Finished requests that wait to be written to an owner's journal, also while the disk is full."""

import logging
import time
from collections.abc import Callable

from anespec.runtime.drafters.memory.owner_files import OwnerFiles
from anespec.runtime.drafters.memory.records import Head, LatestTexts
from anespec.system.errors import StorageError

SECONDS_BETWEEN_TRIES = 5.0
"""After a failed write, so that a full disk does not cost every request a failed write."""

MOST_WAITING = 4 << 20
"""Bytes of requests that wait to be written."""

JOURNAL, SNAPSHOT = "journal", "snapshot"
"""Errors of writing."""

_log = logging.getLogger(__name__)


class RequestJournal:
    """Write requests to an owner's journal in their order. Those that cannot be written wait.

    What waits is written with the first request after SECONDS_BETWEEN_TRIES, or by `try_again`. A fault is
    logged once when it begins and once when it ends, and never raised. Not safe for use from several threads.
    """

    def __init__(
        self,
        files: OwnerFiles | None,
        head: Head,
        *,
        writes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a journal at the first request.

        With no files, and while `writes` is false because another process writes them, all requests wait.
        `clock` gives seconds.
        """
        self.writes = writes and files is not None
        self._files = files
        self._head = head
        self._clock = clock
        self._waiting = LatestTexts(MOST_WAITING)
        self._next_try = 0.0
        self._failing: set[str] = set()
        self.has_lost = False
        """Whether a learnt request is in no journal and no longer waits to be written."""

    def write(self, record: bytes) -> None:
        """Add a request's record."""
        if not self._waiting.add(record) and not self.has_lost:
            self.has_lost = True
            _log.warning(
                "the memory of drafting %s: more than %d MB of requests wait to be written, and the oldest "
                "are dropped", self._where, MOST_WAITING >> 20,
            )  # fmt: skip
        if self._clock() >= self._next_try:
            self.try_again()

    def try_again(self) -> bool:
        """Write the requests that wait; return whether none does any more."""
        if self._files is None or not self.writes:
            return not self._waiting.records
        for record in self._waiting.records:
            if not self._append(bytes(record)):
                self._next_try = self._clock() + SECONDS_BETWEEN_TRIES
                return False
            self._waiting.drop_first()
        return True

    def write_now(self, record: bytes) -> bool:
        """Add a record that is worth nothing later, after all requests that wait; return whether it is
        there."""
        return self.writes and self.try_again() and self._append(record)

    def take(self) -> list[bytes]:
        """Return the requests that wait, which wait no more."""
        taken, self._waiting = self._waiting, LatestTexts(MOST_WAITING)
        return [bytes(record) for record in taken.records]

    def put_back(self, taken: list[bytes]) -> None:
        """Have requests wait that were taken, before those that came meanwhile."""
        since, self._waiting = self._waiting, LatestTexts(MOST_WAITING)
        for record in (*taken, *since.records):
            self._waiting.add(record)

    def end(self) -> None:
        """End the file; the next request begins another."""
        try:
            if self._files is not None:
                self._files.end_journal()
        except OSError as error:
            self.failed(JOURNAL, error)

    @property
    def is_failing(self) -> bool:
        """Whether the last write of any part failed."""
        return bool(self._failing)

    def failed(self, part: str, error: OSError | StorageError) -> None:
        """Note that a part could not be written, and log it where all could before."""
        if not self._failing:
            reason = error.strerror if isinstance(error, OSError) else error
            _log.warning(
                "the memory of drafting %s cannot be written (%s); it is kept in memory alone, and writing "
                "is tried again with later requests", self._where, reason,
            )  # fmt: skip
        self._failing.add(part)

    def succeeded(self, part: str) -> None:
        """Note that a part was written, and log it where that was the last that could not be."""
        if part in self._failing:
            self._failing.remove(part)
            if not self._failing:
                _log.warning("the memory of drafting %s is written again", self._where)

    def _append(self, record: bytes) -> bool:
        assert self._files is not None
        try:
            self._files.append(self._head, record)
        except (OSError, StorageError) as error:
            # Of a folder that was removed the earlier requests are gone as well.
            self.has_lost |= isinstance(error, FileNotFoundError)
            self.failed(JOURNAL, error)
            return False
        self.succeeded(JOURNAL)
        return True

    @property
    def _where(self) -> str:
        return "" if self._files is None else str(self._files.path)
