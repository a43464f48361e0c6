"""The folder of one download, for one process at a time; it is removed if it keeps nothing of the file."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.manifests.user_folders import private_folder

LOCK = "lock"


@contextlib.contextmanager
def own_folder(path: Path, wait: Callable[[], None]) -> Iterator[Folder]:
    """Lock the folder for the block; `wait` is called once if another process has it.

    Raises:
        StorageError: it is another user's, or the file system refuses.
    """
    while True:
        with private_folder(path) as folder, _locked(path, wait):
            # The other process may have removed it meanwhile; the lock then protects nothing.
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
    except FileNotFoundError:
        # Removed while this one waited; the caller looks.
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
                # Under another name first, so that nobody begins a download in it meanwhile.
                gone = f".{secrets.token_hex(16)}"
                around.rename(folder.path.name, gone)
                around.remove(gone)
