"""Cache the SHA-256 of large files and packages, so that an unchanged file is not read again.

A file counts as unchanged if its device, inode, size, mtime and ctime are the same, and its name within a
package. A program that changes a file cannot set its ctime, so a forged modification time is detected. Damage
below the file system is not detected; `again` reads everything. The cache is in the user's own cache folder.
If that cannot be used, files are read every time.
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
"""Seconds after a change until a hash is cached: two changes within a clock tick have the same times."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Memory(BaseModel):
    """The cached hashes by the identity of their files, the oldest first."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    known: dict[Hash, Hash] = {}


class KnownHashes:
    """Hashes of files and packages (see `store.Hashes`), cached in a folder."""

    def __init__(self, folder: Path | None = None, *, again: bool = False) -> None:
        """Use the cache in `folder`; None is the user's cache folder.

        With `again` all files are read, and cached hashes are replaced.
        """
        self._given = folder
        self._again = again

    def known(self, path: Path) -> str | None:
        """Return the cached hash of a file; None if it must be read. Raise OSError if there is no file."""
        return None if self._again else self._remembered.get(_identity([("", path.stat())]))

    def file(self, path: Path) -> str:
        """Return the hash of a file.

        Raises:
            OSError: the file cannot be read.
            StorageError: the file changes while it is read.
        """
        return self._hash(path, lambda: [("", path.stat())], file_sha256)

    def package(self, path: Path) -> str:
        """Return the hash of a package (see `store.package_sha256`); raises like that and like `file`."""

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
            raise StorageError(f"{path}: changes while it is read; try again when it is complete")
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
        """Cache a hash, and drop the oldest if there are too many. If that cannot be written, do nothing."""
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
    """Return a hash of the names and status of files; it changes if a file's content changes."""
    facts = [
        (name, of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for name, of in statuses
    ]
    return hashlib.sha256(ascii(facts).encode()).hexdigest()


def _is_settled(status: os.stat_result) -> bool:
    """Return whether the last change is so long ago that another change would have other times."""
    return time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_SECONDS * 1e9
