"""The memory of one owner: an image in RAM, learnt in place, and the files that restore it."""

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.learner import Learner, fold_whole
from anespec.runtime.drafters.memory.owner_files import OwnerFiles, Snapshot
from anespec.runtime.drafters.memory.records import (
    Head,
    Kind,
    LatestTexts,
    Lesson,
    framed,
    lessons,
    records,
)
from anespec.runtime.drafters.memory.request_journal import SNAPSHOT, RequestJournal
from anespec.system.errors import StorageError

SNAPSHOT_TOKENS = 1 << 13
"""Tokens in journals from which on a snapshot is due: learning them again takes some 20 milliseconds."""

MOST_JOURNALS = 32
"""Files from which on it is due, too: every run begins one."""

SNAPSHOT_SECONDS = 300.0
"""Between two snapshots, so that a busy daemon does not write all the time."""

MOST_JOURNAL_TOKENS = 1 << 20
"""Tokens in journals that are never exceeded by much."""

TEXT_BYTES = 4 << 20
"""Of the latest requests, which are kept so that another learner, or another vocabulary, can learn them."""

MOST_RELEARNT = 1 << 17
"""Tokens of them that are learnt where an image cannot be used."""

_log = logging.getLogger(__name__)

_ENDED = object()


class OwnerMemory:
    """One owner's memory (see learner.Remembered). Safe for use from several threads.

    A fault of the file system never gets out of here. It is logged, and what is learnt meanwhile is written
    later: see RequestJournal.
    """

    def __init__(
        self,
        learner: Learner,
        size: int,
        head: Head,
        files: OwnerFiles | None = None,
        *,
        writes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read what the files hold; without any it lives in memory alone.

        `head` says whose it is; `writes` is false where another process writes these files. `clock` gives
        seconds. Raises RequestError where `size` bytes are too few for the learner.
        """
        self.lock = threading.Lock()
        self._learner = learner
        self._head = head
        self._files = files
        self._clock = clock
        self._saving = threading.Lock()
        self._saver: threading.Thread | None = None
        self._torn = False
        self._journal = RequestJournal(files, head, writes=writes, clock=clock)
        self._texts = LatestTexts(TEXT_BYTES)
        self._journals = self._tokens = 0
        self._unflushed = False
        self._saved = clock()
        self._size = size
        self.image = learner.fresh(size)
        if files is not None:
            self._read(files)

    def fold(self, text: NDArray[np.int32], answer: int) -> None:
        """Have the files know a finished request, and learn it; the lock is let go between steps."""
        record = Lesson.of(text, answer).record()
        with self.lock:
            self._texts.add(record)
            self._tokens += len(text)
            self._unflushed = True
            if self._files is not None:
                self._journal.write(record)
        steps = self._learner.fold(self.image, text, answer)
        while True:
            with self.lock:
                if next(steps, _ENDED) is _ENDED:
                    break
        if self._is_due():
            self._save_aside()

    def flush(self) -> None:
        """See to it that nothing learnt is lost when the process ends; it takes as long as the disk does."""
        if (saver := self._saver) is not None:
            saver.join()
        if not (self._journal.writes and self._unflushed):
            return
        if not (self._needs_snapshot or self._is_long):
            weights = framed(Kind.WEIGHTS, self._learner.weights(self.image).tobytes())
            with self.lock:
                if self._journal.write_now(weights):
                    self._end_journal()
                    self._unflushed = False
                    return
        self.save()

    def close(self) -> None:
        """Write what is to last; from now on what is learnt stays in memory."""
        self.flush()
        with self.lock:
            self._journal.writes = False
        if (saver := self._saver) is not None:
            saver.join()
        self._files = None

    def take_over(self) -> None:
        """Write from now on, since the process that did so has ended; what it has learnt is learnt here."""
        with self.lock:
            if self._journal.writes or self._files is None:
                return
            mine = self._journal.take()
            self._texts, self._tokens, self._journals = LatestTexts(TEXT_BYTES), 0, 0
            self.image[:] = self._learner.fresh(self._size)
            self._journal.writes = True
            self._read(self._files)
            for record in mine:
                self._learn(record, with_weights=False)
                self._texts.add(record)
                self._journal.write(record)
            self._unflushed = bool(mine)

    def _read(self, files: OwnerFiles) -> None:
        try:
            if (found := files.snapshot(self.image)) is not None:
                self._take(found)
            generation = 0 if found is None else found.head.generation
            for journal in files.journals(generation):
                self._learn(journal.content, self._is_ours(journal.head))
                self._texts.add_all(journal.content)
                self._journals += 1
            self._unflushed |= self._is_long
        except (OSError, StorageError) as error:
            self._say_unread("cannot be read", error)
            self._journal.writes = False
        except Exception as error:
            # What was kept makes the learner fail. The next snapshot takes its place.
            self._say_unread("cannot be learnt", error)
            self.image[:] = self._learner.fresh(self._size)
            self._texts = LatestTexts(TEXT_BYTES)
            self._torn = self._unflushed = True

    def _take(self, found: Snapshot) -> None:
        """Use a snapshot: its image, or where that is damaged or another learner's, the latest requests."""
        self._texts.add_all(found.texts)
        if found.image is not None and self._is_ours(found.head) and self._learner.is_sound(self.image):
            return
        self.image[:] = self._learner.fresh(self._size)
        left, again = MOST_RELEARNT, []
        for lesson in reversed(list(lessons(found.texts))):
            if (left := left - len(lesson.text)) < 0:
                break
            again.append(lesson)
        for lesson in reversed(again):
            fold_whole(self._learner, self.image, lesson.text, lesson.answer)
        if found.head.image_bytes == self.image.nbytes and self._is_ours(found.head):
            _log.warning("%s: is damaged, so drafting learns anew", self._where)
        self._unflushed = True
        self._tokens = SNAPSHOT_TOKENS

    def _is_ours(self, head: Head) -> bool:
        """Return whether the learner understands the content described by this head."""
        mine = self._learner
        return (head.vocabulary, head.learner, head.version) == (
            self._head.vocabulary, mine.name, mine.version,
        )  # fmt: skip

    def _learn(self, content: bytes, with_weights: bool) -> None:
        """Learn a journal."""
        for kind, inside in records(content):
            if kind is Kind.LESSON and (lesson := Lesson.of_content(inside)) is not None:
                fold_whole(self._learner, self.image, lesson.text, lesson.answer)
                self._tokens += len(lesson.text)
            if kind is Kind.WEIGHTS and with_weights:
                self._take_weights(inside)

    def _take_weights(self, content: bytes | memoryview) -> None:
        """Go on with weights that were kept, if they are any."""
        weights = self._learner.weights(self.image)
        if len(content) == weights.nbytes:
            before = weights.copy()
            weights[:] = np.frombuffer(content, np.uint8)
            if not self._learner.is_sound(self.image):
                weights[:] = before

    def _end_journal(self) -> None:
        self._journals += 1
        self._journal.end()

    @property
    def _needs_snapshot(self) -> bool:
        """Whether the journals lack learnt requests, or hold damaged parts."""
        return self._torn or self._journal.has_lost

    @property
    def _is_long(self) -> bool:
        """Whether learning the journals takes too long when the memory is opened."""
        return self._tokens >= SNAPSHOT_TOKENS or self._journals >= MOST_JOURNALS

    def _is_due(self) -> bool:
        """Whether a snapshot is due."""
        needs = self._needs_snapshot
        if not self._journal.writes or (self._tokens < SNAPSHOT_TOKENS and not needs):
            return False
        if self._saver is not None and self._saver.is_alive():
            return False
        waited = self._clock() - self._saved >= SNAPSHOT_SECONDS
        return waited or (self._tokens >= MOST_JOURNAL_TOKENS and not (needs or self._journal.is_failing))

    def _save_aside(self) -> None:
        """Write a snapshot while the caller goes on."""
        self._saved = self._clock()
        self._saver = threading.Thread(target=self.save, name="anespec memory", daemon=True)
        self._saver.start()

    def save(self) -> None:
        """Write a snapshot. The lock is held while the image is copied, a few milliseconds for 32 MB."""
        assert self._files is not None
        with self._saving:
            self._saved = self._clock()
            # The first copy is thrown away: it brings all pages of both into memory.
            image = self.image.copy()
            with self.lock:
                self._end_journal()
                try:
                    # Known before a later request can be written: it has this number or a higher one.
                    generation = self._files.next_number()
                except (OSError, StorageError) as error:
                    self._journal.failed(SNAPSHOT, error)
                    return
                np.copyto(image, self.image)
                facts = self._learner.facts(self.image)
                texts, tokens, journals = self._texts.records, self._tokens, self._journals
                waiting, needed = self._journal.take(), self._needs_snapshot
                self._tokens = self._journals = 0
                self._unflushed = self._torn = self._journal.has_lost = False
            fault: OSError | StorageError | None = None
            try:
                head = self._head.with_snapshot(generation, image, texts, facts)
                self._files.write(head, image, texts)
            except (OSError, StorageError) as error:
                fault = error
            with self.lock:
                if fault is None:
                    self._journal.succeeded(SNAPSHOT)
                else:
                    self._journal.failed(SNAPSHOT, fault)
                    self._journal.put_back(waiting)
                    self._torn |= needed
                    self._tokens += tokens
                    self._journals += journals
                    self._unflushed = True
            self._saved = self._clock()

    @property
    def _where(self) -> str:
        return "" if self._files is None else str(self._files.path)

    def _say_unread(self, what: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else error
        _log.warning(
            "the memory of drafting %s %s (%s); it is kept in memory alone", self._where, what, reason
        )
