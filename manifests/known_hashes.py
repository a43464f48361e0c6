"""Cache the SHA-256 of large files and packages: a file that the file system reports as unchanged is not read
again.

Unchanged means the same device, inode, size and both times of every file, and its name within a package. A
program that changes a file cannot set its ctime, so a forged modification time is detected. Damage below the
file system is not detected; `again` reads everything. The hashes are in the user's own cache folder. If that
cannot be used, files are read.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anespec.manifests.store import file_sha256, package_files, package_sha256
from anespec.system.errors import StorageError
from anespec.system.user_folders import cache_folder, private_folder

MEMORY_NAME = "hashes.json"
MOST_REMEMBERED = 2048
LARGEST_MEMORY = 1 << 20

SETTLED_SECONDS = 2.0
"""A file that changed less long ago may change once more within one tick of the file system's clock."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Memory(BaseModel):
    """Hashes by the identity of what they are of, the oldest first."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    known: dict[Hash, Hash] = {}


class KnownHashes:
    """Hashes of files and packages (see `store.Hashes`); what a folder's memory has is not read again."""

    def __init__(self, folder: Path | None = None, *, again: bool = False) -> None:
        """`folder` is the user's cache folder where None is given, or one below it.

        With `again` all is read, and what is remembered is replaced.
        """
        self._given = folder
        self._again = again

    def known(self, path: Path) -> str | None:
        """The remembered hash of a file; None where it must be read. Raises OSError where there is none."""
        return None if self._again else self._remembered.get(_identity([("", path.stat())]))

    def file(self, path: Path) -> str:
        """The hash of a file.

        Raises:
            OSError: it cannot be read.
            StorageError: it changes meanwhile.
        """
        return self._hash(path, lambda: [("", path.stat())], file_sha256)

    def package(self, path: Path) -> str:
        """The hash of a package, as `store.package_sha256` makes it; raises like that and like `file`."""

        def statuses() -> list[tuple[str, os.stat_result]]:
            return [(file.relative_to(path).as_posix(), file.lstat()) for file in package_files(path)]

        return self._hash(path, statuses, package_sha256)

    def _hash(
        self,
        path: Path,
        statuses: Callable[[], list[tuple[str, os.stat_result]]],
        read: Callable[[Path], str],
    ) -> str:
        before = statuses()
        identity = _identity(before)
        if not self._again and (known := self._remembered.get(identity)) is not None:
            return known
        settled = all(_is_settled(status) for _, status in before)
        digest = read(path)
        if _identity(statuses()) != identity:
            raise StorageError(f"{path}: changes while it is read; try again when it is whole")
        if settled:
            self._remember(identity, digest)
        return digest

    @cached_property
    def _remembered(self) -> dict[str, str]:
        try:
            with private_folder(self._folder) as folder:
                return _Memory.model_validate_json(folder.read(MEMORY_NAME, LARGEST_MEMORY)).known
        except (OSError, StorageError, ValidationError):
            return {}

    @property
    def _folder(self) -> Path:
        return cache_folder() if self._given is None else self._given

    def _remember(self, identity: str, digest: str) -> None:
        """Add one, oldest out; where that cannot be written the file is read again next time."""
        with (
            contextlib.suppress(OSError, StorageError),
            private_folder(self._folder) as folder,
            folder.held(),
        ):
            self.__dict__.pop("_remembered", None)
            known = {of: hash for of, hash in self._remembered.items() if of != identity} | {identity: digest}
            self._remembered = dict(list(known.items())[-MOST_REMEMBERED:])
            memory = _Memory(known=self._remembered)
            folder.replace(MEMORY_NAME, memory.model_dump_json().encode(), durable=False)


def _identity(statuses: list[tuple[str, os.stat_result]]) -> str:
    """Return the status of named files from the file system; any change of content changes it."""
    facts = [
        (name, of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for name, of in statuses
    ]
    return hashlib.sha256(ascii(facts).encode()).hexdigest()


def _is_settled(status: os.stat_result) -> bool:
    """Return whether the last change is long enough ago for a further change to show in the times."""
    return time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_SECONDS * 1e9
