"""Hold the memory of one tenant: an image in RAM, which the database restores after a restart."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.runtime.drafters.memory.database_access import DatabaseAccess
from anespec.runtime.drafters.memory.learner import Learner, fold_whole
from anespec.runtime.drafters.memory.request_record import LatestRequests, RequestRecord
from anespec.runtime.drafters.memory.tables import Position, StoredImage, Tenant, Weights

SNAPSHOT_TOKENS = 1 << 13
"""Tokens of requests after an image from which on another image is due: learning them takes some 20 ms."""

SNAPSHOT_SECONDS = 300.0
"""The least time between two images, so that a busy daemon does not write all the time."""

MAX_UNSAVED_TOKENS = 1 << 20
"""Tokens of requests after an image from which on another image is written at once."""

MAX_WAITING_BYTES = 4 << 20
"""The most bytes of requests that wait to be written."""

MAX_RELEARNT_BYTES = 1 << 19
"""The most bytes of the latest requests that are learnt again if an image cannot be used."""

_log = logging.getLogger(__name__)

_ENDED = object()


class TenantMemory:
    """One tenant's memory (see TenantMemoryView). Safe for use from several threads.

    Errors of the database are never raised (see DatabaseAccess); requests wait in RAM meanwhile.
    """

    def __init__(
        self,
        tenant: str,
        learner: Learner,
        size: int,
        access: DatabaseAccess,
        waiting: Sequence[RequestRecord] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the image and requests from the database, then learn the `waiting` requests.

        `size` is the most bytes of the image; `clock` returns seconds.

        Raises:
            RequestError: `size` is too small for the learner.
        """
        self.lock = threading.Lock()
        self.image = learner.fresh(size)
        self._tenant = Tenant.of(tenant)
        self._learner = learner
        self._size = size
        self._access = access
        self._clock = clock
        self._waiting = LatestRequests(MAX_WAITING_BYTES)
        for record in waiting:
            self._waiting.add(record)
        self._position = Position()
        self._tokens = 0
        self._is_loaded = False
        self._is_blank = True
        self._has_news = bool(waiting)
        self._needs_image = False
        self._saving = threading.Lock()
        self._saver: threading.Thread | None = None
        self._saved = clock()
        self._load()

    def fold(self, text: NDArray[np.int32], answer: int) -> None:
        """Write a finished request to the database, then learn it; the lock is released between steps."""
        with self.lock:
            if not self._is_loaded:
                self._load()
            self._tokens += len(text)
            self._has_news = True
            if self._access.is_kept and not self._waiting.add(RequestRecord.of(text, answer)):
                self._drop()
            others = self._write()
            self._tokens += sum(len(each.text) for each in others)
            self._is_blank = False
        for each in (*others, RequestRecord(text, answer)):
            steps = self._learner.fold(self.image, each.text, each.answer)
            while True:
                with self.lock:
                    if next(steps, _ENDED) is _ENDED:
                        break
        if self._is_due():
            self._saved = self._clock()
            self._saver = threading.Thread(target=self.save, name="anespec memory", daemon=True)
            self._saver.start()

    def flush(self) -> None:
        """Write everything that is not yet written; this waits for the disk."""
        if (saver := self._saver) is not None:
            saver.join()
        with self.lock:
            if not (self._access.is_kept and self._has_news and self._write_all()):
                return
            if not self._needs_image and self._tokens < SNAPSHOT_TOKENS:
                self._has_news = not self._write_weights()
                return
        self.save()

    def save(self) -> None:
        """Write the image. The lock is held while the image is copied, a few milliseconds for 32 MB."""
        with self._saving:
            # This first copy is only made to load all pages of both arrays, before the lock is held.
            image = self.image.copy()
            with self.lock:
                if not (self._access.is_kept and self._write_all()):
                    return
                np.copyto(image, self.image)
                facts = self._learner.facts(self.image)
                position, tokens = self._position, self._tokens
                self._tokens, self._has_news, self._needs_image = 0, False, False
            is_saved = self._access.write(
                lambda database: database.save_image(image, position, *self._learner_and_version, facts),
                now=True,
            )
            self._saved = self._clock()
            if not is_saved:
                with self.lock:
                    self._tokens += tokens
                    self._has_news = self._needs_image = True

    def _load(self, now: bool = False) -> None:
        """Load the image and requests from the database, then learn the requests that wait."""
        try:
            is_read = bool(self._access.read(self._read, now=now))
        except Exception as error:
            # The learner fails on the stored data. The next image replaces it.
            _log.warning("the draft memory cannot be loaded (%s), so drafting starts without it", error)
            is_read = self._has_news = self._needs_image = True
        if is_read or self._is_blank:
            self._learn(self._waiting.records)
        if not self._access.is_kept:
            self._waiting.clear()
        self._is_loaded = is_read or not self._access.is_kept

    def _read(self, database: MemoryDatabase) -> bool:
        """Load the image and learn the requests of the database; return True. After an error the image is
        blank."""
        try:
            self._reset()
            with database.at_once("DEFERRED"):
                place = database.position(self._tenant)
                weights, stored = database.weights(place), database.image(place)
                again: list[RequestRecord] = []
                self._needs_image = stored is not None and not self._use(database, stored)
                if stored is not None:
                    if self._needs_image:
                        again, _ = database.requests(place, stored.upto, MAX_RELEARNT_BYTES)
                    place = replace(place, number=stored.upto)
                since, self._position = database.requests(place)
            self._tokens = 0
            self._learn(again)
            self._learn_others(since)
            if weights is not None and (weights.learner, weights.version) == self._learner_and_version:
                self._take_weights(weights.content)
            self._has_news |= self._needs_image or self._tokens >= SNAPSHOT_TOKENS
        except BaseException:
            self._reset()
            raise
        return True

    def _use(self, database: MemoryDatabase, stored: StoredImage) -> bool:
        """Load a stored image; return False and leave the image blank if it is damaged or another
        learner's."""
        if not stored.is_of(self._learner, self.image.nbytes):
            return False
        self._is_blank = False
        if database.read_image(stored, self.image) and self._learner.is_sound(self.image):
            return True
        _log.warning("an image of the draft memory is damaged, so only the latest requests are learnt again")
        self._reset()
        return False

    def _reset(self) -> None:
        """Make the image blank."""
        if not self._is_blank:
            self.image[:] = self._learner.fresh(self._size)
            self._is_blank = True

    def _learn(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            self._is_blank = False
            fold_whole(self._learner, self.image, record.text, record.answer)

    def _learn_others(self, records: Sequence[RequestRecord]) -> None:
        """Learn requests that the database's image does not contain, and count their tokens."""
        self._tokens += sum(len(record.text) for record in records)
        self._learn(records)

    def _take_weights(self, content: bytes) -> None:
        """Use stored weights if they are valid."""
        weights = self._learner.weights(self.image)
        if len(content) == weights.nbytes:
            before = weights.copy()
            weights[:] = np.frombuffer(content, np.uint8)
            self._is_blank = False
            if not self._learner.is_sound(self.image):
                weights[:] = before

    def _drop(self) -> None:
        """Record that learnt requests were dropped before they were written, so an image must be written."""
        if not self._needs_image:
            self._needs_image = True
            _log.warning(
                "more than %d MB of requests wait to be written to the draft memory; the oldest are dropped",
                MAX_WAITING_BYTES >> 20,
            )

    def _write(self, now: bool = False) -> list[RequestRecord]:
        """Write the requests that wait; return the requests that other processes wrote before them."""
        if not self._is_loaded:
            return []
        records, before = self._waiting.records, self._position
        added = self._access.write(lambda database: database.add(self._tenant, records, before), now=now)
        if added is None:
            return []
        self._waiting.clear()
        self._position, others = added
        # The image holds requests that a new file, or a tenant that was removed and added again, does not
        # have.
        self._needs_image |= before.is_elsewhere(self._position)
        return others

    def _write_all(self) -> bool:
        """Write the requests that wait, and learn those of other processes; return whether all are
        written."""
        if not self._is_loaded:
            self._load(now=True)
        self._learn_others(self._write(now=True))
        return self._is_loaded and not self._waiting

    def _write_weights(self) -> bool:
        weights = Weights(*self._learner_and_version, self._learner.weights(self.image).tobytes())
        return bool(
            self._access.write(lambda database: database.save_weights(self._tenant, weights), now=True)
        )

    def _is_due(self) -> bool:
        """Return whether an image is to be written now."""
        if not self._access.is_kept or (self._tokens < SNAPSHOT_TOKENS and not self._needs_image):
            return False
        if self._saver is not None and self._saver.is_alive():
            return False
        is_long = self._tokens >= MAX_UNSAVED_TOKENS and not self._access.is_failing
        return is_long or self._clock() - self._saved >= SNAPSHOT_SECONDS

    @property
    def _learner_and_version(self) -> tuple[str, int]:
        return self._learner.name, self._learner.version
