"""The memories on disk, for all owners and models: their limit, listing and removal.

    MEMORY/VOCABULARY/models.json    see used_models
    MEMORY/VOCABULARY/OWNER/         see owner_files

VOCABULARY is the beginning of the SHA-256 over the tokens (Tokenizer.vocabulary_hash).
"""

import contextlib
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from anespec.runtime.drafters.memory.owner_files import Journal, OwnerFiles, Snapshot, owner_folder
from anespec.runtime.drafters.memory.owner_memory import TEXT_BYTES
from anespec.runtime.drafters.memory.records import Head, LatestTexts, Lesson, lessons, shown_owner
from anespec.runtime.drafters.memory.used_models import MODELS_NAME, Model, read_models
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import private_folder

FILE_BYTES = 2 << 30
"""Limit of all files together, of all vocabularies and owners; beyond it the owner written longest ago is
removed."""

VOCABULARY_LETTERS = 16

IN_USE = "another anespec (`anespec ps` shows the daemons)"

_OWNER = re.compile(r"[0-9a-f]{32}")
_VOCABULARY = re.compile(r"[0-9a-f]{16}")


Found = TypeVar("Found")


@dataclass(frozen=True)
class Weight:
    """Bytes of one owner's files for one vocabulary, and the time of the last write."""

    vocabulary: str
    folder: str
    bytes: int
    written: datetime


@dataclass(frozen=True)
class Kept(Weight):
    """The content of a kept memory. `requests` were learnt; `nodes` of `room` are used, according to the last
    snapshot."""

    owner: str
    requests: int
    nodes: int
    room: int

    def is_of(self, owner: str) -> bool:
        """Return whether the text names its owner: by the whole name, or by the name of the key alone."""
        return owner in (self.owner, self.owner.partition(" ")[0])


@dataclass(frozen=True)
class Contents:
    """The files of an owner as they were read."""

    snapshot: Snapshot | None
    journals: list[Journal]

    @property
    def head(self) -> Head | None:
        """Whose they are; None where nothing is whole."""
        heads = [] if self.snapshot is None else [self.snapshot.head]
        return next(iter([*heads, *(journal.head for journal in self.journals)]), None)

    @property
    def texts(self) -> list[Lesson]:
        """The latest requests, the oldest first."""
        pieces = [] if self.snapshot is None else [self.snapshot.texts]
        return [
            lesson for piece in (*pieces, *(j.content for j in self.journals)) for lesson in lessons(piece)
        ]

    @property
    def since(self) -> int:
        """Requests that are learnt since the snapshot."""
        return sum(1 for journal in self.journals for _ in lessons(journal.content))


@dataclass(frozen=True)
class Added:
    """Return the number of requests that were added, and the number of their tokens that were used."""

    requests: int
    tokens: int


def vocabulary_key(vocabulary_hash: str) -> str:
    """The name of a vocabulary's folder."""
    return vocabulary_hash[:VOCABULARY_LETTERS]


def trim(root: Path, most: int, mine: Folder, in_use: set[str]) -> None:
    """Remove the owners written longest ago until all files together have at most `most` bytes.

    `mine` is the vocabulary that this process writes, of which owners' folders are `in_use`. A vocabulary of
    another process is not touched, and a file that cannot be removed is skipped.
    """
    with contextlib.suppress(OSError, StorageError):
        shelf = MemoryShelf(root)
        weights = shelf.weights()
        total = sum(each.bytes for each in weights)
        for each in sorted(weights, key=lambda each: each.written):
            if total <= most:
                return
            if each.vocabulary == mine.path.name:
                if each.folder in in_use:
                    continue
                mine.remove(each.folder)
            else:
                with contextlib.suppress(StorageError):
                    shelf.remove(each)
            total -= each.bytes


class MemoryShelf:
    """The folder of all vocabularies."""

    def __init__(self, root: Path) -> None:
        """It need not exist."""
        self.root = root

    def vocabularies(self) -> list[str]:
        """The keys of those that something is kept for."""
        if not self.root.is_dir():
            return []
        found: list[str] = []
        # A person may have named any folder: it is looked into, and left as it is.
        with Folder.open(self.root) as root:
            for name in filter(_VOCABULARY.fullmatch, root.names()):
                if not stat.S_ISDIR(root.mode(name) or 0):
                    continue
                with root.folder(name) as vocabulary:
                    if _owners(vocabulary):
                        found.append(name)
        return found

    def models(self, vocabulary: str) -> tuple[Model, ...]:
        """The models that used a vocabulary, the latest first."""
        with private_folder(self.root / vocabulary) as folder:
            return read_models(folder)

    def kept(self) -> list[Kept]:
        """All that is kept, what was written last first.

        Raises:
            StorageError: the folder cannot be read, or is not this user's.
        """
        return sorted(self._each(_kept), key=lambda each: each.written, reverse=True)

    def weights(self) -> list[Weight]:
        """Return the bytes of all owners' files; none is opened. Raises as `kept` does."""
        return self._each(_weight)

    def _each(self, look: Callable[[Folder, str], Found]) -> list[Found]:
        found: list[Found] = []
        for vocabulary in self.vocabularies():
            with private_folder(self.root / vocabulary) as folder:
                for name in _owners(folder):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(look(folder, name))
        return found

    def contents(self, kept: Kept) -> Contents:
        """The files of an owner."""
        with private_folder(self.root / kept.vocabulary) as folder:
            return _contents(OwnerFiles(folder, kept.folder))

    def add(self, vocabulary: str, owner: str, texts: Iterable[Lesson]) -> Added:
        """Have an owner's memory learn requests when it is opened next; all are looked at before any is.

        Of more than TEXT_BYTES the last ones are taken.

        Raises:
            StorageError: another process has the vocabulary in use, or the file system refuses.
        """
        taken, requests = LatestTexts(TEXT_BYTES), 0
        for lesson in texts:
            requests += 1
            taken.add(lesson.record())
        head = Head(vocabulary=vocabulary, owner=shown_owner(owner), learner="", version=0)
        where = self.root / vocabulary
        try:
            with private_folder(where) as folder, folder.alone(IN_USE):
                files = OwnerFiles(folder, owner_folder(owner))
                if taken.records:
                    files.write_journal(files.next_number(), head, taken.records)
        except OSError as error:
            raise StorageError(f"{where}: cannot be written ({error.strerror})") from error
        return Added(requests, sum(len(each.text) for record in taken.records for each in lessons(record)))

    def remove(self, kept: Weight) -> None:
        """Remove what is kept of an owner.

        Raises:
            StorageError: another process has it in use, or the file system refuses.
        """
        try:
            with private_folder(self.root / kept.vocabulary) as folder, folder.alone(IN_USE):
                folder.remove(kept.folder)
                if not _owners(folder):
                    folder.remove(MODELS_NAME)
        except OSError as error:
            where = self.root / kept.vocabulary / kept.folder
            raise StorageError(f"{where}: cannot be removed ({error.strerror})") from error


def _owners(vocabulary: Folder) -> list[str]:
    """The names of the owners' folders."""
    return list(filter(_OWNER.fullmatch, vocabulary.names()))


def _contents(files: OwnerFiles) -> Contents:
    try:
        snapshot = files.snapshot()
        journals = files.journals(0 if snapshot is None else snapshot.head.generation)
    except (OSError, StorageError):
        return Contents(None, [])
    return Contents(snapshot, journals)


def _weight(folder: Folder, name: str) -> Weight:
    statuses = [folder.status(name)]
    if stat.S_ISDIR(statuses[0].st_mode):
        with folder.folder(name) as inside:
            statuses = [inside.status(file) for file in inside.names()]
    return Weight(
        vocabulary=folder.path.name,
        folder=name,
        bytes=sum(status.st_size for status in statuses),
        written=datetime.fromtimestamp(max((s.st_mtime for s in statuses), default=0), UTC).astimezone(),
    )


def _kept(folder: Folder, name: str) -> Kept:
    found = _contents(OwnerFiles(folder, name))
    head = found.head
    return Kept(
        **vars(_weight(folder, name)),
        owner="" if head is None else head.owner,
        requests=(0 if found.snapshot is None else found.snapshot.head.requests) + found.since,
        nodes=0 if head is None else head.nodes,
        room=0 if head is None else head.room,
    )
