"""Lock the folder of one download, and remove it afterwards if it is empty."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from anespec.manifests.schema import Record
from anespec.models.url.connection import Answer
from anespec.system.errors import AnespecError, StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import private_folder

# What the server said about a downloaded file, stored beside the file.

LARGEST_FACTS = 1 << 16
"""The most bytes of the stored facts."""


Said = Annotated[str, Field(pattern=r"^[ -~]{1,1000}$")]
"""A header's value that may be sent back to the server."""


class Facts(Record):
    """The facts of a file from its server: a version mark, the length, and the hash, if there is one."""

    url: str
    etag: Said | None = None
    modified: Said | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def validator(self) -> str | None:
        """Return the value of If-Range for resuming a download: a strong ETag, or the time of the last
        change."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.modified

    def is_same(self, answer: Answer) -> bool:
        """Return whether an answer contains the same version, whichever part of it.

        A server may ignore the condition and send a part of another version.
        """
        strong = self.validator is not None and self.validator == (
            answer.etag if self.validator == self.etag else answer.modified
        )
        return (
            strong
            and (self.bytes is None or self.bytes == answer.whole)
            and answer.linked_sha256 in (None, self.sha256)
        )

    @classmethod
    def of(cls, url: str, answer: Answer) -> Self:
        """Return the facts in a response for the file at `url`."""
        return cls(
            url=url,
            etag=answer.etag,
            modified=answer.modified,
            bytes=answer.whole,
            sha256=answer.linked_sha256,
        )

    @classmethod
    def read(cls, folder: Folder, name: str, url: str) -> Self | None:
        """Return the stored facts of the file at `url`; None if they are missing or unreadable."""
        try:
            facts = cls.model_validate_json(folder.read(name, LARGEST_FACTS))
        except (OSError, AnespecError, ValidationError):
            return None
        return facts if facts.url == url else None

    def write(self, folder: Folder, name: str) -> None:
        """Write the facts to a file; raises OSError if the file system refuses."""
        folder.replace(name, self.model_dump_json().encode())


LOCK = "lock"


@contextlib.contextmanager
def own_folder(path: Path, wait: Callable[[], None]) -> Iterator[Folder]:
    """Lock the folder for the block; `wait` is called once if another process has it.

    Raises:
        StorageError: the folder belongs to another user, or the file system refuses.
    """
    while True:
        with private_folder(path) as folder, _locked(path, wait):
            # The other process may have removed the folder meanwhile; then the lock protects nothing.
            if not _is_there(folder):
                continue
            try:
                yield folder
            finally:
                _remove_if_empty(folder)
            return


@contextlib.contextmanager
def _locked(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK, mode=0o600)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            wait()
            lock.acquire()
    except (FileNotFoundError, FileExistsError):
        # The folder was removed meanwhile, perhaps while filelock looked for it; the caller checks that.
        pass
    except OSError as error:
        raise StorageError(f"{path}: cannot be locked ({error.strerror})") from error
    try:
        yield
    finally:
        lock.release()


def _is_there(folder: Folder) -> bool:
    """Return whether an open folder is still at its path, with its lock in it."""
    try:
        return os.path.samestat(folder.status("."), folder.path.lstat()) and folder.mode(LOCK) is not None
    except OSError:
        return False


def _remove_if_empty(folder: Folder) -> None:
    """Remove a folder that contains only its lock, if the file system permits."""
    with contextlib.suppress(OSError, StorageError):
        if folder.names() == [LOCK]:
            with private_folder(folder.path.parent) as around:
                # Rename it first, so that no other process starts a download in it meanwhile.
                gone = f".{secrets.token_hex(16)}"
                around.rename(folder.path.name, gone)
                around.remove(gone)
