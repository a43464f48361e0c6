"""The SHA-256 of large files, remembered: a file that is the same to the file system is not read again.

The same means device, inode, size and both times. The time of the last change of status (ctime) cannot be set
by whoever changes a file, so a forged modification time hides nothing.
"""

import time
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.manifests.store import file_sha256

MOST_REMEMBERED = 256
LARGEST_MEMORY = 1 << 20
SETTLED_SECONDS = 2.0
"""A file that changed less long ago may change once more within one tick of the file system's clock."""

_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileIdentity(BaseModel):
    """What the file system says of a file; any change of its content changes it."""

    model_config = _STRICT

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileIdentity":
        """The identity of what lies at `path` now; raises OSError where nothing does."""
        status = path.stat()
        return cls(
            device=status.st_dev,
            inode=status.st_ino,
            size=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns,
        )

    @property
    def settled(self) -> bool:
        """Whether the last change is long enough ago for the next to be seen."""
        return time.time_ns() - max(self.modified_ns, self.changed_ns) > SETTLED_SECONDS * 1e9


class _Remembered(BaseModel):
    model_config = _STRICT

    identity: FileIdentity
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Memory(BaseModel):
    model_config = _STRICT

    files: tuple[_Remembered, ...] = ()


class SourceHashes:
    """Hashes remembered in one file of an open private folder; what is unreadable there counts as nothing."""

    def __init__(self, folder: Folder, name: str = "hashes.json") -> None:
        """Nothing is read before a hash is asked for."""
        self._folder = folder
        self._name = name

    def known(self, path: Path) -> str | None:
        """The remembered hash of a file; None where it must be read. Raises OSError where there is none."""
        identity = FileIdentity.of(path)
        return next((file.sha256 for file in self._read().files if file.identity == identity), None)

    def read(self, path: Path) -> str:
        """The hash of a file as it is now, remembered.

        Raises:
            OSError: it cannot be read.
            StorageError: it changes meanwhile.
        """
        before = FileIdentity.of(path)
        settled = before.settled
        digest = file_sha256(path)
        if FileIdentity.of(path) != before:
            raise StorageError(f"{path}: changes while it is read; try again when it is whole")
        if settled:
            self._remember(_Remembered(identity=before, sha256=digest))
        return digest

    def _read(self) -> _Memory:
        try:
            return _Memory.model_validate_json(self._folder.read(self._name, LARGEST_MEMORY))
        except (OSError, StorageError, ValidationError):
            return _Memory()

    def _remember(self, new: _Remembered) -> None:
        """Add one, oldest out; where that cannot be written the file is read again next time."""
        with self._folder.held():
            others = [
                known
                for known in self._read().files
                if (known.identity.device, known.identity.inode) != (new.identity.device, new.identity.inode)
            ]
            memory = _Memory(files=(*others, new)[-MOST_REMEMBERED:])
            try:
                self._folder.replace(self._name, memory.model_dump_json().encode(), durable=False)
            except (OSError, StorageError):
                return
