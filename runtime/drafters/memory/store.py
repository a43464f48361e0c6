"""List, remove and limit the draft memories on disk, of all vocabularies and tenants.

    MEMORY/VOCABULARY/memory.sqlite    see database

VOCABULARY is the beginning of the SHA-256 of the tokens (Tokenizer.vocabulary_hash).
"""

import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from anespec.runtime.drafters.memory.database import (
    FILES,
    NAME,
    MemoryDatabase,
    UnusableDatabaseError,
)
from anespec.runtime.drafters.memory.database_access import OTHER_USER
from anespec.runtime.drafters.memory.request_record import TEXT_BYTES, LatestRequests, RequestRecord
from anespec.runtime.drafters.memory.tables import Tenant, TenantFacts
from anespec.runtime.drafters.memory.used_models import Model, noted_models
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import private_folder

STORE_BYTES = 2 << 30
"""The limit of all memories together; beyond it the least recently written tenants are removed."""

VOCABULARY_LETTERS = 16

_VOCABULARY = re.compile(r"[0-9a-f]{16}")


class StoredTenant(TenantFacts):
    """The facts about a tenant's memory for one vocabulary; only the size if the database cannot be read."""

    vocabulary: str

    @property
    def last_written(self) -> datetime:
        """The time of the last request."""
        return datetime.fromtimestamp(self.written, UTC).astimezone()

    def is_of(self, tenant: str) -> bool:
        """Return whether a text is this tenant's name, or the first word of it (the name of its API key)."""
        return tenant in (self.name, self.name.partition(" ")[0])


@dataclass(frozen=True)
class Added:
    """The number of requests that were added, and the number of their tokens that were used."""

    requests: int
    tokens: int


def vocabulary_key(vocabulary_hash: str) -> str:
    """Return the name of a vocabulary's folder."""
    return vocabulary_hash[:VOCABULARY_LETTERS]


class DraftMemoryStore:
    """The folder of all vocabularies. Methods raise StorageError if a database cannot be read or written."""

    def __init__(self, root: Path) -> None:
        """Open nothing; the folder need not exist."""
        self.root = root

    def vocabularies(self) -> list[str]:
        """Return the keys of the vocabularies that have a memory."""
        if not self.root.is_dir():
            return []
        found: list[str] = []
        # The user may have given any folder, so this only reads it.
        with Folder.open(self.root) as root:
            for name in filter(_VOCABULARY.fullmatch, root.names()):
                if stat.S_ISDIR(root.mode(name) or 0):
                    with root.folder(name) as vocabulary:
                        if vocabulary.mode(NAME) is not None:
                            found.append(name)
        return found

    def models(self, vocabulary: str) -> tuple[Model, ...]:
        """Return the models that used a vocabulary, the latest first."""
        with suppress(StorageError), self._database(vocabulary) as database:
            return noted_models(database)
        return ()

    def kept(self) -> list[StoredTenant]:
        """Return the facts about all tenants of all vocabularies, the most recently written first."""
        found = [kept for vocabulary in self.vocabularies() for kept in self._kept(vocabulary)]
        return sorted(found, key=lambda each: each.written, reverse=True)

    def requests(self, kept: StoredTenant) -> list[RequestRecord]:
        """Return a tenant's latest requests, the oldest first."""
        with self._database(kept.vocabulary) as database:
            return database.requests(database.position(Tenant(kept.key, kept.name)))[0]

    def add(self, vocabulary: str, tenant: str, texts: Iterable[RequestRecord]) -> Added:
        """Store requests, which the tenant's memory learns when it is next opened.

        All texts are read before the first is stored. If they have more than TEXT_BYTES, the last ones are
        stored.

        Raises:
            StorageError: the database cannot be written, or another process uses the vocabulary.
        """
        taken, requests = LatestRequests(TEXT_BYTES), 0
        for record in texts:
            requests += 1
            taken.add(record)
        with self._database(vocabulary, alone=True) as database:
            if taken:
                database.add(Tenant.of(tenant), taken.records)
        return Added(requests, sum(len(record.text) for record in taken.records))

    def remove(self, kept: StoredTenant) -> None:
        """Remove a tenant's memory; remove the whole file with its last tenant, or if it is damaged.

        Raises:
            StorageError: the file cannot be changed, or another process uses the vocabulary.
        """
        with (
            _storage_errors(self.root / kept.vocabulary) as where,
            private_folder(where) as folder,
            folder.alone(OTHER_USER),
        ):
            if kept.key:
                with suppress(UnusableDatabaseError), closing(MemoryDatabase(folder)) as database:
                    database.remove(kept.key)
                    database.shrink()
                    if database.tenants():
                        return
            for name in FILES:
                folder.remove(name)

    def trim(self, most: int, mine: MemoryDatabase, vocabulary: str, in_use: set[str]) -> None:
        """Remove the least recently written tenants until all memories together have at most `most` bytes.

        `mine` is the open database of `vocabulary`; its tenants with the keys `in_use` stay. A vocabulary
        that another process uses is not changed.
        """
        if self._file_bytes(*self.vocabularies()) <= most:
            return
        kept = self.kept()
        total = sum(each.bytes for each in kept)
        for each in reversed(kept):
            if total <= most:
                return
            if each.vocabulary != vocabulary:
                with suppress(StorageError):
                    self.remove(each)
                    total -= each.bytes
            elif each.key not in in_use:
                mine.remove(each.key)
                total -= each.bytes

    def _file_bytes(self, *vocabularies: str) -> int:
        """Return the size of the databases' files, which is at least the size of their content."""
        size = 0
        for path in (self.root / vocabulary / name for vocabulary in vocabularies for name in FILES):
            with suppress(FileNotFoundError):
                size += path.lstat().st_size
        return size

    def _kept(self, vocabulary: str) -> list[StoredTenant]:
        try:
            with self._database(vocabulary) as database:
                return [
                    StoredTenant(vocabulary=vocabulary, **facts.model_dump()) for facts in database.tenants()
                ]
        except StorageError:
            size = self._file_bytes(vocabulary)
            return [StoredTenant(key="", name="", written=0, bytes=size, requests=0, nodes=0, room=0,
                         vocabulary=vocabulary)]  # fmt: skip

    @contextmanager
    def _database(self, vocabulary: str, *, alone: bool = False) -> Iterator[MemoryDatabase]:
        """Open the database of a vocabulary; with `alone` only if no other process uses it."""
        with _storage_errors(self.root / vocabulary) as where, ExitStack() as stack:
            folder = stack.enter_context(private_folder(where))
            if alone:
                stack.enter_context(folder.alone(OTHER_USER))
            yield stack.enter_context(closing(MemoryDatabase(folder)))


@contextmanager
def _storage_errors(where: Path) -> Iterator[Path]:
    try:
        yield where
    except OSError as error:
        raise StorageError(f"{where}: cannot be used ({error.strerror})") from error
