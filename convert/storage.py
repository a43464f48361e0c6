"""What a file system refuses, as a sentence."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from anespec.manifests.errors import StorageError

DISK_FULL = "the disk is full; free some space and run the command again"

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

NATIVE_WRITER = "[MIL FileWriter]"
"""How the messages of coremltools' weight writer begin; it tells nothing of what the system said."""


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what a file system refuses, also in coremltools' native writer, into a StorageError."""
    try:
        yield
    except OSError as error:
        # numpy reports a short write without an error number.
        if error.errno is None or error.errno in FULL_DISK_ERRORS:
            raise StorageError(f"{path}: {DISK_FULL}") from error
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    except RuntimeError as error:
        # The free space says nothing here: what filled the disk may be removed by now.
        if not str(error).startswith(NATIVE_WRITER):
            raise
        raise StorageError(f"{path}: {DISK_FULL}") from error
