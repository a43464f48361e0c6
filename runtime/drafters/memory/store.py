"""The draft memories on disk, of all vocabularies and tenants: their limit, listing and removal.

    MEMORY/VOCABULARY/memory.sqlite    see database

VOCABULARY is the beginning of the SHA-256 over the tokens (Tokenizer.vocabulary_hash).
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
from anespec.runtime.drafters.memory.database_access import IN_USE, prepare
from anespec.runtime.drafters.memory.earlier_files import old_tenants
from anespec.runtime.drafters.memory.request_record import TEXT_BYTES, LatestRequests, RequestRecord
from anespec.runtime.drafters.memory.tables import Tenant, TenantFacts
from anespec.runtime.drafters.memory.used_models import Model, noted_models
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import private_folder

STORE_BYTES = 2 << 30
"""Limit of all memories together; beyond it the tenant written longest ago is removed."""

VOCABULARY_LETTERS = 16

_VOCABULARY = re.compile(r"[0-9a-f]{16}")


class StoredTenant(TenantFacts):
    """What is kept of a tenant for one vocabulary; of a database that cannot be read, only its bytes."""

    vocabulary: str

    @property
    def last_written(self) -> datetime:
        """The time of the last request."""
        return datetime.fromtimestamp(self.written, UTC).astimezone()

    def is_of(self, tenant: str) -> bool:
        """Return whether a text names its tenant: by the whole name, or by the name of the key alone."""
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
    """The folder of all vocabularies. Raises StorageError where one cannot be read or written."""

    def __init__(self, root: Path) -> None:
        """Open nothing; the folder need not exist."""
        self.root = root

    def vocabularies(self) -> list[str]:
        """Return the keys of the vocabularies that something is kept for."""
        if not self.root.is_dir():
            return []
        found: list[str] = []
        # A person may have named any folder: it is looked into, and left as it is.
        with Folder.open(self.root) as root:
            for name in filter(_VOCABULARY.fullmatch, root.names()):
                if stat.S_ISDIR(root.mode(name) or 0):
                    with root.folder(name) as vocabulary:
                        if vocabulary.mode(NAME) is not None or old_tenants(vocabulary):
                            found.append(name)
        return found

    def models(self, vocabulary: str) -> tuple[Model, ...]:
        """Return the models that used a vocabulary, the latest first."""
        with suppress(StorageError), self._database(vocabulary) as database:
            return noted_models(database)
        return ()

    def kept(self) -> list[StoredTenant]:
        """Return all that is kept, what was written last first."""
        found = [kept for vocabulary in self.vocabularies() for kept in self._kept(vocabulary)]
        return sorted(found, key=lambda each: each.written, reverse=True)

    def requests(self, kept: StoredTenant) -> list[RequestRecord]:
        """Return a tenant's latest requests, the oldest first."""
        with self._database(kept.vocabulary) as database:
            return database.requests(database.position(Tenant(kept.key, kept.name)))[0]

    def add(self, vocabulary: str, tenant: str, texts: Iterable[RequestRecord]) -> Added:
        """Have a tenant's memory learn requests when it is opened next; all are looked at before any is.

        Of more than TEXT_BYTES the last ones are taken. Raises StorageError also if another process uses the
        vocabulary.
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
        """Remove what is kept of a tenant; with the last one, or from a damaged file, the whole file.

        Raises StorageError also if another process uses the vocabulary.
        """
        with _storage_errors(self.root / kept.vocabulary) as where, private_folder(where) as folder:
            if kept.key:
                prepare(folder)
            with folder.alone(IN_USE):
                if kept.key:
                    with suppress(UnusableDatabaseError), closing(MemoryDatabase(folder)) as database:
                        database.remove(kept.key)
                        database.shrink()
                        if database.tenants():
                            return
                for name in FILES:
                    folder.remove(name)

    def trim(self, most: int, mine: MemoryDatabase, vocabulary: str, in_use: set[str]) -> None:
        """Remove the tenants written longest ago until all memories together have at most `most` bytes.

        `mine` is the open database of a vocabulary, of which the tenants with the keys `in_use` stay. A
        vocabulary that another process uses is not touched.
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
        """Return the size of databases, which is at least that of their content."""
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
        """The database of a vocabulary, `alone` without any other process that uses it."""
        with _storage_errors(self.root / vocabulary) as where, private_folder(where) as folder:
            prepare(folder)
            with ExitStack() as stack:
                if alone:
                    stack.enter_context(folder.alone(IN_USE))
                yield stack.enter_context(closing(MemoryDatabase(folder)))


@contextmanager
def _storage_errors(where: Path) -> Iterator[Path]:
    try:
        yield where
    except OSError as error:
        raise StorageError(f"{where}: cannot be used ({error.strerror})") from error
