"""The files of one owner's memory: a snapshot of the image, and the journals after it.

    OWNER/snapshot       head, image, the latest lessons
    OWNER/journal-N      head, and a record for every request that ended since

OWNER is a hash of the owner's name, which is user text; the name stands in the files. A snapshot contains all
journals before its generation, so those are removed after it has its name, and one that a crash has left is
not read. Nothing is ever written into a file of an earlier run, whose end may be torn.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.records import (
    FRAME_BYTES,
    LAST_GENERATION,
    MAGIC,
    Head,
    Kind,
    head_size,
    records,
)
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

SNAPSHOT = "snapshot"
PRIVATE = 0o600

LARGEST_JOURNAL = 1 << 28
"""Bytes that are read of one."""

LARGEST_TEXTS = 1 << 24
"""Bytes that are read of a snapshot's lessons."""

_JOURNAL = re.compile(r"journal-(\d{6,9})")


def owner_folder(owner: str) -> str:
    """Return the name of an owner's folder: letters and digits, for any name of the owner."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot as it was read: `image` is None where it is damaged or not asked for; `texts` records."""

    head: Head
    image: NDArray[np.uint8] | None
    texts: bytes


@dataclass(frozen=True)
class Journal:
    """The whole records of a journal behind its head."""

    number: int
    head: Head
    content: bytes


class OwnerFiles:
    """One owner's files. Raises OSError and StorageError as a Folder does."""

    def __init__(self, vocabulary: Folder, name: str) -> None:
        """The caller closes the folder of the vocabulary; the owner's folder, of this name, is made at the
        first write."""
        self._vocabulary = vocabulary
        self._name = name
        self._journal: io.FileIO | None = None
        self._whole = 0  # bytes of the journal up to the end of its last whole record

    @property
    def path(self) -> Path:
        """The owner's folder."""
        return self._vocabulary.path / self._name

    def snapshot(self, into: NDArray[np.uint8] | None = None) -> Snapshot | None:
        """The snapshot; None where there is none, or its head is no good.

        Its image is read into an array of the same size, if it is of that size. Where it is damaged the array
        holds nonsense.
        """
        with (
            contextlib.suppress(FileNotFoundError),
            self._vocabulary.folder(self._name) as folder,
            _reader(folder, SNAPSHOT) as stream,
        ):
            head = _read_head(stream)
            if head is None:
                return None
            image = into if into is not None and into.nbytes == head.image_bytes else None
            if image is None:
                # No file system goes as far as a head may say.
                stream.seek(min(head.image_bytes, os.fstat(stream.fileno()).st_size), os.SEEK_CUR)
            elif stream.readinto(image.data) != image.nbytes or zlib.crc32(image.data) != head.image_crc:
                image = None
            return Snapshot(head, image, stream.read(min(head.text_bytes, LARGEST_TEXTS)))
        return None

    def journals(self, generation: int = 0) -> list[Journal]:
        """The journals from that number on, in their order."""
        found: list[Journal] = []
        with contextlib.suppress(FileNotFoundError), self._vocabulary.folder(self._name) as folder:
            for number in _numbers(folder):
                if number < generation:
                    continue
                # The writer may remove one meanwhile.
                with contextlib.suppress(FileNotFoundError), _reader(folder, _journal_name(number)) as stream:
                    if (head := _read_head(stream)) is not None:
                        found.append(Journal(number, head, stream.read(LARGEST_JOURNAL)))
        return found

    def next_number(self) -> int:
        """Return a number that no journal has and no snapshot contains. Raises StorageError where there is
        none."""
        with contextlib.suppress(FileNotFoundError), self._vocabulary.folder(self._name) as folder:
            number = max(_numbers(folder), default=-1) + 1
            if number > LAST_GENERATION:
                last = folder.path / _journal_name(number - 1)
                raise StorageError(f"{last}: behind it no number is left for another journal; remove it")
            with contextlib.suppress(FileNotFoundError), _reader(folder, SNAPSHOT) as stream:
                if (head := _read_head(stream)) is not None:
                    return max(number, head.generation)
            return number
        return 0

    def append(self, head: Head, record: bytes) -> None:
        """Add a record to the open journal, or begin one with it. The record is the system's at once.

        Where that fails, the journal ends with its last whole record, so that later ones can follow.
        """
        if self._journal is None:
            number = self.next_number()
            with self._vocabulary.folder(self._name, create=True) as folder:
                folder.make_private()
                self._journal = folder.new_file(_journal_name(number), PRIVATE)
            self._whole = 0
        if not os.fstat(self._journal.fileno()).st_nlink:
            # Somebody has removed the folder: what is written there is gone with this process.
            self.end_journal()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        if not self._whole:
            record = MAGIC + head.record() + record
        try:
            if self._journal.write(record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self._cut_back(self._journal)
            raise
        self._whole += len(record)

    def _cut_back(self, journal: io.FileIO) -> None:
        """Remove half a record, behind which nothing would be read; the next one begins a file otherwise."""
        try:
            journal.truncate(self._whole)
            journal.seek(self._whole)
        except OSError:
            with contextlib.suppress(OSError):
                self.end_journal()

    def write_journal(self, number: int, head: Head, contents: Sequence[bytes | memoryview]) -> None:
        """A whole journal at once, or none."""
        with self._vocabulary.folder(self._name, create=True) as folder:
            folder.make_private()
            folder.replace_parts(_journal_name(number), (MAGIC, head.record(), *contents), mode=PRIVATE)

    def end_journal(self) -> None:
        """Later records go to another one."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def write(self, head: Head, image: NDArray[np.uint8], texts: Sequence[bytes | memoryview]) -> None:
        """Replace the snapshot, and remove the journals that it contains and what a crash has left."""
        with self._vocabulary.folder(self._name, create=True) as folder:
            folder.make_private()
            parts = (MAGIC, head.record(), image.data, *texts)
            folder.replace_parts(SNAPSHOT, parts, mode=PRIVATE)
            for name in folder.names():
                found = _JOURNAL.fullmatch(name)
                if name.endswith(".partial") or (found is not None and int(found[1]) < head.generation):
                    folder.remove(name)


def _reader(folder: Folder, name: str) -> io.BufferedReader:
    """Open a file and make it private to this user."""
    stream = folder.reader(name)
    try:
        found = os.fstat(stream.fileno())
        if found.st_uid != os.geteuid():
            raise StorageError(f"{folder.path / name}: belongs to another user; remove it")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(stream.fileno(), PRIVATE)
    except BaseException:
        stream.close()
        raise
    return stream


def _numbers(folder: Folder) -> list[int]:
    found = map(_JOURNAL.fullmatch, folder.names())
    return sorted(int(match[1]) for match in found if match is not None)


def _journal_name(number: int) -> str:
    return f"journal-{number:06}"


def _read_head(stream: io.BufferedReader) -> Head | None:
    """The head of a file; what follows it is left to be read."""
    if stream.read(len(MAGIC)) != MAGIC:
        return None
    frame = stream.read(FRAME_BYTES)
    if (size := head_size(frame)) is None:
        return None
    for kind, content in records(frame + stream.read(size)):
        return Head.of_content(content) if kind is Kind.HEAD else None
    return None
