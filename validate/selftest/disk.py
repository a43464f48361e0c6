"""Measure how much disk the system's caches take, and end a run that takes too much.

Core ML keeps specialised models where `du` does not see them; they reached 274 GB (coremltools#2549, B). So
the measure is the loss of free space, less the size of the self-test's own folder.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from anespec.system.coreml_errors import known_error
from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text

NO_SPACE = "no space"
"""The code of a failure for lack of disk space, as in coreml_errors."""

CACHE_LIMIT = 60_000_000_000
MIN_FREE_BYTES = 3_000_000_000
"""The free bytes of disk below which nothing is tried, since a Mac with a full disk fails in ways of its
own."""

Free = Callable[[Path], int]


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that holds the folder or its nearest existing parent."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder; files that disappear meanwhile are not counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = Path(place, name).lstat()
            except OSError:
                continue
            total += min(found.st_size, 512 * found.st_blocks)
    return total


def is_full(error: Exception) -> bool:
    """Return whether an error says that the disk is full, which is not the fault of the trial."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if isinstance(error, StorageError) and isinstance(error.__cause__, OSError):
        return is_full(error.__cause__)
    known = known_error(str(error))
    return "disk is full" in str(error) or (known is not None and known.code == NO_SPACE)


class CacheWatch:
    """The disk use since a run began with `free` bytes; the system's caches may take `limit` of them."""

    def __init__(self, folder: Path, free: int, limit: int = CACHE_LIMIT, free_now: Free = free_disk) -> None:
        self._folder, self._free, self._limit, self._free_now = folder, free, limit, free_now

    @property
    def taken(self) -> int:
        """Return the bytes lost that are not in the folder: about what the system's caches took."""
        return max(0, self._free - self._free_now(self._folder) - size_of(self._folder))

    def full(self) -> str | None:
        """Return why nothing more should be tried; None if there is enough disk."""
        if (free := self._free_now(self._folder)) < MIN_FREE_BYTES:
            kept = bytes_text(MIN_FREE_BYTES)
            return f"only {bytes_text(free)} of disk are free; {kept} stay free for the system"
        if (taken := self.taken) > self._limit:
            limit = bytes_text(self._limit)
            return f"the system's caches took {bytes_text(taken)} of disk, more than {limit} (--cache-limit)"
        return None
