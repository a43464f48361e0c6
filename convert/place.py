"""The work folder and the final place of an artifact: one run at a time, all or nothing."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from anespec.manifests.errors import StorageError


@contextlib.contextmanager
def exclusive(work: Path) -> Iterator[None]:
    """Hold the work folder against a second run; the lock goes with the process, however it ends.

    Raises:
        StorageError: another run holds it.
        OSError: the file system refuses.
    """
    work.parent.mkdir(parents=True, exist_ok=True)
    lock_path = work.with_suffix(".lock")
    with lock_path.open("w") as lock:
        if not _take_lock(lock, lock_path):
            raise StorageError(f"{work}: another conversion to the same place is running; let it end")
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)


def _take_lock(lock: IO[str], path: Path) -> bool:
    """Take the lock; False where another run holds it, or has removed the file that was opened."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def put_in_place(work: Path, output: Path) -> None:
    """Rename the finished folder to its place; what stood there goes only after that.

    Raises:
        OSError: the file system refuses; then what stood there stands there still.
    """
    old = output.with_name(f".{output.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    try:
        work.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
