"""Convert errors of the file system into a StorageError with one sentence."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from anespec.system.errors import StorageError

DISK_FULL = "the disk is full; free some space and run the command again"

FILE_REMOVED = (
    "was removed or changed by another program during the conversion; "
    "keep other programs out of this folder and run the command again"
)

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert an OSError in the block into a StorageError about `path`."""
    try:
        yield
    except OSError as error:
        # numpy reports a short write without an error number.
        if error.errno is None or error.errno in FULL_DISK_ERRORS:
            raise StorageError(f"{path}: {DISK_FULL}") from error
        if error.errno == errno.ENOENT:
            raise StorageError(f"{path}: {FILE_REMOVED}") from error
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
