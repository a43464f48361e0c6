"""The memories of all owners for one vocabulary: the Memory that draft sources get."""

import logging
import threading
import time
import weakref
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.learner import Learner
from anespec.runtime.drafters.memory.owner_files import OwnerFiles, owner_folder
from anespec.runtime.drafters.memory.owner_memory import OwnerMemory
from anespec.runtime.drafters.memory.records import Head, Lesson, lessons, shown_owner
from anespec.runtime.drafters.memory.request_journal import RequestJournal
from anespec.runtime.drafters.memory.shelf import FILE_BYTES, trim
from anespec.runtime.drafters.memory.used_models import Model, note_model
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import private_folder

MOST_IN_RAM = 8
"""Owners whose images stay in memory; one more, and the one asked for longest ago goes to its files."""

SECONDS_BETWEEN_TRIES = 30.0
"""Seconds between attempts to become the writer, after another process was."""

_log = logging.getLogger(__name__)


class VocabularyMemory:
    """Owners' memories under one folder, or in memory alone (see learner.Memory).

    Safe from several threads.

    One process writes; others read, and keep new knowledge in RAM while that process runs. Errors of files
    are never raised.
    """

    def __init__(
        self,
        learner: Learner,
        size: int,
        vocabulary: str,
        folder: Path | None = None,
        *,
        model: Model | None = None,
        most_in_ram: int = MOST_IN_RAM,
        most_on_disk: int = FILE_BYTES,
    ) -> None:
        """An image has at most `size` bytes; `folder` is that of all vocabularies, None for no files.

        `model` is the one that draws from it. Nothing is opened before it is asked for.
        """
        self._learner = learner
        self._size = size
        self._vocabulary = vocabulary
        self._root = folder
        self._model = model
        self._most_in_ram = most_in_ram
        self._most_on_disk = most_on_disk
        self._guard = threading.Lock()
        self._stack = ExitStack()
        self._folder: Folder | None = None
        self._writes = False
        self._opened = False
        self._tried = 0.0
        self._recent: OrderedDict[str, OwnerMemory] = OrderedDict()
        # Who is used by a session stays the only one of its owner, also after it is none of the recent ones.
        self._alive: weakref.WeakValueDictionary[str, OwnerMemory] = weakref.WeakValueDictionary()
        self._flushing: list[threading.Thread] = []
        # Requests of owners whose memory is not open yet: on disk, or waiting to be written.
        self._unlearnt: OrderedDict[str, RequestJournal] = OrderedDict()

    def of(self, owner: str) -> OwnerMemory:
        """Return the memory of `owner`. Raises RequestError if an image's size is too small."""
        with self._guard:
            self._open()
            found = self._alive.get(owner)
            if found is None:
                found = self._opened_memory(owner)
                self._alive[owner] = found
            self._recent[owner] = found
            self._recent.move_to_end(owner)
            if len(self._recent) > self._most_in_ram:
                self._flush_aside(self._recent.popitem(last=False)[1])
            return found

    def keep(self, owner: str, text: NDArray[np.int32], answer: int) -> None:
        """Keep a finished request in the owner's journal; it is learnt when the memory is opened.

        Where it is open already, it is learnt now.
        """
        with self._guard:
            self._open()
            found = self._alive.get(owner)
            if found is None:
                self._journal_of(owner).write(Lesson.of(text, answer).record())
                return
        found.fold(text, answer)

    def flush(self) -> None:
        """See to it that nothing learnt is lost when the process ends."""
        with self._guard:
            for journal in self._unlearnt.values():
                journal.try_again()
        for memory in self._all():
            memory.flush()
        self._trim()

    def close(self) -> None:
        """Write what is to last, and let another process write; called again it does nothing."""
        self.flush()
        for memory in self._all():
            memory.close()
        with self._guard:
            for journal in self._unlearnt.values():
                journal.end()
            self._unlearnt.clear()
            self._recent.clear()
            self._stack.close()
            self._root, self._folder, self._writes = None, None, False

    def _all(self) -> list[OwnerMemory]:
        """Those in memory, none of them at being written."""
        with self._guard:
            alive, flushing = list(self._alive.values()), self._flushing
        for thread in flushing:
            thread.join()
        return alive

    def _open(self) -> None:
        """Open the folder, and become its writer if no other process is."""
        if self._root is None or (self._opened and self._writes):
            return
        now = time.monotonic()
        if self._opened and now - self._tried < SECONDS_BETWEEN_TRIES:
            return
        is_first, self._opened, self._tried = not self._opened, True, now
        try:
            if self._folder is None:
                self._folder = self._stack.enter_context(private_folder(self._root / self._vocabulary))
            self._stack.enter_context(self._folder.alone("another anespec"))
        except (OSError, StorageError) as error:
            if self._folder is None:
                _log.warning("%s; what drafting learns is kept in memory alone", error)
                self._root = None
            elif is_first:
                _log.info("%s: another process writes there; what this one learns is in memory", self._root)
            return
        self._writes = True
        note_model(self._folder, self._model)
        for memory in list(self._alive.values()):
            memory.take_over()
        for journal in self._unlearnt.values():
            journal.writes = True

    def _files(self, owner: str) -> OwnerFiles | None:
        return None if self._folder is None else OwnerFiles(self._folder, owner_folder(owner))

    def _opened_memory(self, owner: str) -> OwnerMemory:
        """Open an owner's memory, which learns what was kept of its requests."""
        kept = self._unlearnt.get(owner)
        if kept is not None:
            kept.try_again()
        memory = OwnerMemory(
            self._learner, self._size, self._head(owner), self._files(owner), writes=self._writes
        )
        if kept is not None:
            del self._unlearnt[owner]
            kept.end()
            for lesson in lessons(b"".join(kept.take())):
                memory.fold(lesson.text, lesson.answer)
        return memory

    def _journal_of(self, owner: str) -> RequestJournal:
        """Return the journal of an owner whose memory is not open."""
        journal = self._unlearnt.get(owner)
        if journal is None:
            journal = RequestJournal(self._files(owner), self._head(owner), writes=self._writes)
            self._unlearnt[owner] = journal
        self._unlearnt.move_to_end(owner)
        if len(self._unlearnt) > self._most_in_ram:
            # An open file each would be too many; the next request of that owner begins another.
            list(self._unlearnt.values())[-1 - self._most_in_ram].end()
        return journal

    def _head(self, owner: str) -> Head:
        return Head(
            vocabulary=self._vocabulary,
            owner=shown_owner(owner),
            learner=self._learner.name,
            version=self._learner.version,
        )

    def _trim(self) -> None:
        """Keep all files together within their bound."""
        with self._guard:
            root, folder = self._root, self._folder
            in_use = {owner_folder(name) for name in (*self._alive, *self._unlearnt)}
        if root is not None and folder is not None and self._writes:
            trim(root, self._most_on_disk, folder, in_use)

    def _flush_aside(self, memory: OwnerMemory) -> None:
        """Write what an owner has left unwritten while the caller goes on."""

        def flush() -> None:
            memory.flush()
            self._trim()

        self._flushing = [thread for thread in self._flushing if thread.is_alive()]
        thread = threading.Thread(target=flush, name="anespec memory", daemon=True)
        self._flushing.append(thread)
        thread.start()
