"""Describe the file system's errors in one sentence."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from anespec.system.errors import StorageError

DISK_FULL = "the disk is full; free some space and run the command again"

TAKEN_AWAY = (
    "was taken away or changed while the run went on; "
    "keep other programs out of that folder and run the command again"
)

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what a file system refuses into a StorageError."""
    try:
        yield
    except OSError as error:
        # numpy reports a short write without an error number.
        if error.errno is None or error.errno in FULL_DISK_ERRORS:
            raise StorageError(f"{path}: {DISK_FULL}") from error
        if error.errno == errno.ENOENT:
            raise StorageError(f"{path}: {TAKEN_AWAY}") from error
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
