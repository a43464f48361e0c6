"""Store the draft memory of one vocabulary in an SQLite file: the requests and images of all tenants.

    VOCABULARY/memory.sqlite    with SQLite's own files -wal and -shm

Every process appends its finished requests, and an image records up to which request it has learnt. So any
process can continue from the last image and the requests after it, however the earlier process ended. An
image is written in parts, each in its own transaction, so that no other process waits long. It is used only
once all parts are written.

The file is not trusted: its schema is compared before use, its values are checked, and nothing in it is
executed. Only SQLite may open it: closing another descriptor of the file would drop SQLite's locks.
"""

import errno
import logging
import os
import secrets
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from anespec.manifests.schema import Record
from anespec.runtime.drafters.memory.learner import MemoryFacts
from anespec.runtime.drafters.memory.request_record import TEXT_BYTES, RequestRecord
from anespec.runtime.drafters.memory.statement_limit import StatementLimit
from anespec.runtime.drafters.memory.tables import (
    LARGEST_NUMBER,
    OLD_REQUESTS,
    PART_BITS,
    SCHEMA,
    SCHEMA_VERSION,
    TENANTS,
    Position,
    StoredImage,
    Tenant,
    TenantFacts,
    Weights,
)
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

NAME = "memory.sqlite"
LOG_NAME = f"{NAME}-wal"
FILES = (NAME, LOG_NAME, f"{NAME}-shm", f"{NAME}-journal")
MAX_UNLEARNT_BYTES = 16 << 20
"""The most bytes of requests after an image that are read."""

PAGE_BYTES = 1 << 16
PART_BYTES = 1 << 19
PART_PAUSE_SECONDS = 0.001
"""The pause after each part, in which a finished request can be written."""

MAX_VALUE_BYTES = 1 << 22
"""The largest value that is read, since the file may claim any length."""

MAX_LOG_BYTES = 1 << 22
"""The largest log that is left to the next process."""

SETTINGS = (
    "trusted_schema = OFF", "synchronous = NORMAL", "secure_delete = FAST", "wal_autocheckpoint = 2000",
)  # fmt: skip
"""`wal_autocheckpoint`: a request that makes the log longer than 2,000 pages moves it to the file.
`synchronous` NORMAL: written requests survive the end of the process; a crash of the system may lose the
latest ones."""

BUSY_SECONDS = 1.0
"""Seconds that a write waits for another process."""

MAX_TENANTS = 100_000

_DAMAGED = {
    sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_INTERRUPT
}  # fmt: skip
_NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}

_log = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", bound=Record)


def unix_seconds() -> int:
    """Return the time in seconds since 1970."""
    return int(time.time())


class UnusableDatabaseError(StorageError):
    """The file is damaged, or is not a draft memory of this version; trying again will not help."""


class MemoryDatabase:
    """The file of one vocabulary. Safe for use from several threads and processes.

    Every method raises StorageError, whose message names the file, if the file is damaged or busy or the disk
    is full, and OSError if the file system refuses an operation.
    """

    def __init__(self, folder: Folder) -> None:
        """Open or create the file in a folder. A file that cannot be written is opened read-only."""
        self._folder = folder
        self._path = folder.path / NAME
        self._lock = threading.RLock()
        self._limit = StatementLimit()
        for name in FILES:
            _make_private(folder, name)
        if folder.mode(NAME) is None:
            with suppress(FileExistsError):
                folder.new_file(NAME, 0o600).close()
        self._file = folder.status(NAME)
        log = folder.status(LOG_NAME).st_size if LOG_NAME in folder.names() else 0
        self._connection = self._opened()
        if log:
            self._empty_log()

    def close(self) -> None:
        """Close the file; a second call does nothing.

        The last connection that SQLite closes moves the log to the file and waits for the disk. A short log
        is left to the next process: a read-only connection, which cannot move it, is closed last.
        """
        reader = None
        with self._lock, suppress(sqlite3.Error, OSError):
            if self._folder.status(LOG_NAME).st_size < MAX_LOG_BYTES:
                reader = self._connect("mode=ro")
                reader.execute("SELECT 1 FROM info").fetchall()
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()
            if reader is not None:
                reader.close()

    def require_there(self) -> None:
        """Check that the file was not removed or replaced since it was opened.

        Raises:
            OSError, StorageError: it was.
        """
        if not os.path.samestat(self._folder.status(NAME), self._file):
            raise StorageError(f"{self._path}: was replaced by another file while it was in use")

    @contextmanager
    def at_once(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Run the block as one transaction, which writes all or nothing; `kind` is DEFERRED if it only
        reads."""
        with self._lock, self._faults_named():
            if self._connection.in_transaction:
                yield
                return
            self._execute(f"BEGIN {kind}")
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.rollback()
                raise

    def position(self, tenant: Tenant) -> Position:
        """Return the place before a tenant's first request."""
        rows = self._rows("SELECT id FROM tenants WHERE key = ?", tenant.key)
        return Position(self._number(rows[0][0]) if rows else 0)

    def image(self, at: Position) -> StoredImage | None:
        """Return the facts of a tenant's latest complete image; None if there is none."""
        names = ", ".join(StoredImage.model_fields)
        rows = self._rows(f"SELECT {names} FROM images WHERE tenant = ? AND whole = 1 LIMIT 1", at.tenant)
        return self._record(StoredImage, rows[0]) if rows else None

    def read_image(self, stored: StoredImage, into: NDArray[np.uint8]) -> bool:
        """Read an image into an array of its size; return False if it is damaged, and leave the array
        invalid."""
        view, checksum = into.data, 0
        with self._lock, self._faults_named():
            for number, start in enumerate(range(0, into.nbytes, PART_BYTES)):
                place = (stored.id << PART_BITS) + number
                self._limit.begin()
                try:
                    with self._connection.blobopen("parts", "content", place, readonly=True) as part:
                        if len(part) != min(PART_BYTES, into.nbytes - start):
                            return False
                        content = part.read()
                    view[start : start + PART_BYTES] = content
                    checksum = zlib.crc32(content, checksum)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                        raise
                    return False  # the part is missing, or is not a blob
        return checksum == stored.crc

    def weights(self, at: Position) -> Weights | None:
        """Return the weights that were stored after a tenant's image; None if there are none."""
        for learner, version, content in self._rows(
            "SELECT learner, version, weights FROM tenants WHERE id = ?", at.tenant
        ):
            if isinstance(learner, str) and isinstance(version, int) and isinstance(content, bytes):
                return Weights(learner, version, content)
        return None

    def requests(
        self, at: Position, upto: int = LARGEST_NUMBER, most: int = MAX_UNLEARNT_BYTES
    ) -> tuple[list[RequestRecord], Position]:
        """Return the requests after a place up to number `upto`, the oldest first, and the place after them.

        If they have more than `most` bytes of tokens, only the last ones are returned. Rows that are no valid
        request are left out.
        """
        found: list[RequestRecord] = []
        last = at.number
        with self._lock, self._faults_named():
            for number, answer, tokens in self._execute(
                "SELECT number, answer, tokens FROM requests WHERE tenant = ? AND number > ? AND number <= ? "
                "ORDER BY number DESC", at.tenant, at.number, upto,
            ):  # fmt: skip
                last = max(last, self._number(number))
                most -= len(tokens) if isinstance(tokens, bytes) else PAGE_BYTES
                if most < 0:
                    break
                if (record := RequestRecord.of_bytes(tokens, answer)) is not None:
                    found.append(record)
        return found[::-1], replace(at, number=last)

    def add(
        self, tenant: Tenant, records: Sequence[RequestRecord], after: Position | None = None
    ) -> tuple[Position, list[RequestRecord]]:
        """Append requests; return the place after them, and the requests that other processes added before.

        The latter are those after the place `after`; without it none are returned.
        """
        with self.at_once():
            self._rows(
                "INSERT OR IGNORE INTO tenants(id, key, name) VALUES(?, ?, ?)",
                1 + secrets.randbelow(LARGEST_NUMBER), tenant.key, tenant.name,
            )  # fmt: skip
            here = self.position(tenant)
            others: list[RequestRecord] = []
            if after is not None:
                others, _ = self.requests(
                    here if after.is_elsewhere(here) else replace(here, number=after.number)
                )
            ((last,),) = self._rows("SELECT max(number) FROM requests WHERE tenant = ?", here.tenant)
            number = self._number(last or 0)
            for record in records:
                number += 1
                self._rows(
                    "INSERT INTO requests VALUES(?, ?, ?, ?, ?)",
                    here.tenant, number, unix_seconds(), record.answer, record.tokens,
                )  # fmt: skip
        return replace(here, number=number), others

    def save_weights(self, tenant: Tenant, weights: Weights) -> bool:
        """Store the weights of a tenant's learner; return True, as DatabaseAccess.write expects a result."""
        self._rows(
            "UPDATE tenants SET learner = ?, version = ?, weights = ? WHERE key = ?",
            weights.learner, weights.version, weights.content, tenant.key,
        )  # fmt: skip
        return True

    def save_image(
        self, image: NDArray[np.uint8], at: Position, learner: str, version: int, facts: MemoryFacts
    ) -> bool:
        """Replace a tenant's image by one that has learnt the requests up to a place; return success.

        Learnt requests beyond the latest TEXT_BYTES are removed. Return False, and keep the earlier image, if
        the tenant was removed, or another process that saved an image removed the parts of this one.
        """
        # The facts of an untrusted image may be out of range. Stored as they are, they would make the whole
        # memory count as damaged.
        counts = [min(max(int(value), 0), LARGEST_NUMBER) for value in asdict(facts).values()]
        checksum = zlib.crc32(image.data)
        with self._lock, self._faults_named():
            new = self._execute(
                "INSERT INTO images(tenant, whole, upto, learner, version, size, crc, nodes, room, requests, "
                "tokens) VALUES(?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                at.tenant, at.number, learner, version, image.nbytes, checksum, *counts,
            ).lastrowid  # fmt: skip
        first = self._number(new) << PART_BITS
        for start in range(0, image.nbytes, PART_BYTES):
            part = image[start : start + PART_BYTES].data
            self._rows("INSERT INTO parts VALUES(?, ?)", first + start // PART_BYTES, part)
            time.sleep(PART_PAUSE_SECONDS)
        with self.at_once():
            ((written,),) = self._rows(
                "SELECT total(length(content)) FROM parts WHERE id >= ? AND id < ?",
                first, first + (1 << PART_BITS),
            )  # fmt: skip
            current = self.image(at)
            is_saved = written == image.nbytes and bool(
                self._rows("SELECT 1 FROM tenants WHERE id = ?", at.tenant)
            )
            if is_saved and (current is None or current.upto <= at.number):
                self._rows("UPDATE images SET whole = (id = ?) WHERE tenant = ?", new, at.tenant)
                self._rows("UPDATE tenants SET weights = NULL WHERE id = ?", at.tenant)
                self._rows(OLD_REQUESTS, at.tenant, at.number, TEXT_BYTES)
        current = self.image(at)
        self._drop_images(at.tenant, 0 if current is None else current.id)
        self._move_log()
        return is_saved

    def tenants(self) -> list[TenantFacts]:
        """Return the facts about each tenant, in any order."""
        return [self._record(TenantFacts, row) for row in self._rows(TENANTS, MAX_TENANTS)]

    def remove(self, key: str) -> None:
        """Remove the tenant with this key, and all data of it."""
        tenant = self.position(Tenant(key, "")).tenant
        with self.at_once():
            self._rows("DELETE FROM requests WHERE tenant = ?", tenant)
            self._rows("DELETE FROM tenants WHERE id = ?", tenant)
        self._drop_images(tenant)

    def shrink(self) -> None:
        """Give the space of removed data back to the file system."""
        with self._lock, self._faults_named():
            self._limit.begin(times=60)
            # The vacuum of each page is one step of the statement; a script runs all steps.
            self._connection.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def models(self) -> str:
        """The stored text about the models of this vocabulary (see used_models)."""
        rows = self._rows("SELECT models FROM info LIMIT 1")
        return rows[0][0] if rows and isinstance(rows[0][0], str) else ""

    @models.setter
    def models(self, text: str) -> None:
        self._rows("UPDATE info SET models = ?", text)

    def _opened(self) -> sqlite3.Connection:
        """Return a connection to a file with the right schema, read-only if it cannot be written."""
        # The last mode is for a file without a log, in a folder where none can be made.
        modes = ["mode=rw", "mode=ro", "mode=ro&immutable=1"]
        deadline = time.monotonic() + BUSY_SECONDS
        with self._faults_named():
            while True:
                try:
                    return self._checked(self._connect(modes[0]))
                except sqlite3.OperationalError as error:
                    if _code(error) == sqlite3.SQLITE_BUSY and time.monotonic() < deadline:
                        time.sleep(BUSY_SECONDS / 100)  # another process creates the file
                    elif _code(error) in _NOT_WRITABLE and len(modes) > 1:
                        del modes[0]
                    else:
                        raise

    def _empty_log(self) -> None:
        """Move the log that a process has left to the file, and truncate it, unless another one uses it."""
        busy = f"busy_timeout = {BUSY_SECONDS * 1000:.0f}"
        for setting in ("busy_timeout = 0", "wal_checkpoint(TRUNCATE)", busy):
            with suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA {setting}").fetchall()

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(os.fsencode(self._path))}?{mode}",
            uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        # The folder at this path may have been replaced meanwhile.
        if not os.path.samestat(os.lstat(self._path), self._file):
            connection.close()
            raise StorageError(f"{self._path}: was moved; try again")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.text_factory = lambda data: data.decode(errors="replace")
        self._limit.begin()
        self._limit.watch(connection)
        return connection

    def _checked(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Create the schema in an empty file; check the schema of any other file before it is used."""
        try:
            for setting in SETTINGS:
                connection.execute(f"PRAGMA {setting}").fetchall()
            if not _schema(connection):
                self._make_schema(connection)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if (version, _schema(connection)) != (SCHEMA_VERSION, _right_schema()):
                raise UnusableDatabaseError(
                    f"{self._path}: is not a draft memory, or is one of another version of anespec; remove it"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_schema(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            _log.warning(
                "%s: this file system shares no memory between processes, so each finished request waits "
                "for the disk; choose a folder on another disk with --draft-memory", self._path,
            )  # fmt: skip
        connection.execute("BEGIN IMMEDIATE")
        if not _schema(connection):
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO info VALUES('')")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        self._limit.begin()
        return self._connection.execute(statement, values)

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._lock, self._faults_named():
            return self._execute(statement, *values).fetchall()

    def _number(self, value: object) -> int:
        """Return a value of a row that must be a valid number; raise StorageError if it is not."""
        if not isinstance(value, int) or not 0 <= value <= LARGEST_NUMBER:
            raise self._damaged()
        return value

    def _record(self, kind: type[RecordT], row: tuple[object, ...]) -> RecordT:
        try:
            return kind.model_validate(dict(zip(kind.model_fields, row, strict=True)), strict=True)
        except ValidationError:
            raise self._damaged() from None

    def _drop_images(self, tenant: int, kept: int = 0) -> None:
        """Remove a tenant's images except `kept`, also incomplete ones of processes that have ended."""
        for (image,) in self._rows("SELECT id FROM images WHERE tenant = ? AND id != ?", tenant, kept):
            first = self._number(image) << PART_BITS
            for (part,) in self._rows(
                "SELECT id FROM parts WHERE id >= ? AND id < ?", first, first + (1 << PART_BITS)
            ):
                self._rows("DELETE FROM parts WHERE id = ?", part)
                time.sleep(PART_PAUSE_SECONDS)
            self._rows("DELETE FROM images WHERE id = ?", image)

    def _move_log(self) -> None:
        """Move the log to the file on another connection, so that requests can be written meanwhile."""
        with self._faults_named():
            connection = self._connect("mode=rw")
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                connection.close()

    def _damaged(self) -> UnusableDatabaseError:
        return UnusableDatabaseError(f"{self._path}: is damaged; remove it")

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except OverflowError as error:
            raise self._damaged() from error
        except sqlite3.Error as error:
            if _code(error) in _DAMAGED:
                raise self._damaged() from error
            reason = os.strerror(errno.ENOSPC) if _code(error) == sqlite3.SQLITE_FULL else error
            raise StorageError(f"{self._path}: cannot be used ({reason})") from error


def _make_private(folder: Folder, name: str) -> None:
    """Remove all permissions of other users on a file, if it exists, without opening it.

    Raises:
        StorageError: the file belongs to a user who is neither this one nor root, or is not a regular file.
    """
    if folder.mode(name) is None:
        return
    status, path = folder.status(name), folder.path / name
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path}: is a link, or not a regular file; remove it")
    if status.st_uid not in (0, os.geteuid()):
        raise StorageError(f"{path}: belongs to another user; remove it")
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o600)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, or 0 for an error of Python's sqlite3 module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _schema(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name LIMIT 20"
    ).fetchall()


@cache
def _right_schema() -> list[tuple[object, ...]]:
    connection = sqlite3.connect(":memory:")
    for statement in SCHEMA:
        connection.execute(statement)
    return _schema(connection)
