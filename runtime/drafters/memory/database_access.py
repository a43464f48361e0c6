"""Use the database of a vocabulary: open it when it is needed, and again after an error."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from anespec.runtime.drafters.memory.database import MemoryDatabase, UnusableDatabaseError
from anespec.runtime.drafters.memory.used_models import Model, note_model
from anespec.system.errors import StorageError
from anespec.system.user_folders import private_folder

SECONDS_BETWEEN_TRIES = 5.0
"""The pause after an error, so that not every request tries to write to a full disk."""

LOCK_SECONDS = 0.2
"""Seconds to wait for a process that has locked the folder; it usually ends soon."""

OTHER_USER = "another anespec (`anespec ps` shows the daemons)"

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class DatabaseAccess:
    """The access to a vocabulary's database, which never raises an error of it. Safe for several threads.

    After an error the work is not done, and the database is opened again SECONDS_BETWEEN_TRIES later, or at
    the end; a damaged database is not. An error is logged once when it begins, and once when writing works
    again.
    """

    def __init__(
        self, path: Path | None, model: Model | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Open nothing yet. `path` is the vocabulary's folder or None; `clock` returns seconds."""
        self._path = path
        self._model = model
        self._clock = clock
        self._guard = threading.RLock()
        self._next_try = 0.0
        self._database: MemoryDatabase | None = None
        self._stack = ExitStack()
        self.is_failing = False

    @property
    def is_kept(self) -> bool:
        """Whether there is a database; False after `close`, and once it was found damaged."""
        return self._path is not None

    @property
    def is_open(self) -> bool:
        """Whether the database is open."""
        return self._database is not None

    def read(self, work: Callable[[MemoryDatabase], ResultT], *, now: bool = False) -> ResultT | None:
        """Return the result of `work` on the database, or None if it failed.

        Soon after an error nothing is tried, and the result is None, unless `now` is true.
        """
        if self._path is None or (not now and self._clock() < self._next_try):
            return None
        try:
            done = work(self._opened())
        except (OSError, StorageError) as error:
            self._fail(error)
            return None
        self._next_try = 0.0
        return done

    def write(self, work: Callable[[MemoryDatabase], ResultT], *, now: bool = False) -> ResultT | None:
        """Return the result of `work`, which writes to the database; otherwise the same as `read`."""
        done = self.read(work, now=now)
        if done is not None and self.is_failing:
            self.is_failing = False
            _log.warning("%s: the draft memory can be written again", self._path)
        return done

    def close(self) -> None:
        """Close the database for good; a second call does nothing."""
        with self._guard:
            self._close_database()
            self._path = None

    def _opened(self) -> MemoryDatabase:
        with self._guard:
            if self._database is None:
                assert self._path is not None
                folder = self._stack.enter_context(private_folder(self._path))
                self._stack.enter_context(folder.alone(OTHER_USER, wait=LOCK_SECONDS, shared=True))
                self._database = MemoryDatabase(folder)
                self._stack.callback(self._database.close)
                note_model(self._database, self._model)
            self._database.require_there()
            return self._database

    def _close_database(self) -> None:
        self._stack.close()
        self._database = None

    def _fail(self, error: OSError | StorageError) -> None:
        with self._guard:
            self._next_try = self._clock() + SECONDS_BETWEEN_TRIES
            self._close_database()
            if self._path is None:
                return
            reason = f"{self._path}: {error.strerror}" if isinstance(error, OSError) else error
            if isinstance(error, UnusableDatabaseError):
                self._path = None
                _log.warning("%s; what drafting learns is kept in memory alone", reason)
            elif not self.is_failing:
                self.is_failing = True
                _log.warning(
                    "%s; what drafting learns is kept in memory alone until it can be written", reason
                )
