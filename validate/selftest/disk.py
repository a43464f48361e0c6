"""How much disk the system's own caches take, and when a run ends because of it.

Core ML keeps what it specialised in places that are hidden from `du`; they reached 274 GB (coremltools#2549,
B). So the free space tells, less what the self-test's own folder holds.
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
"""The code of a failure for want of disk, as coreml_errors names it."""

CACHE_LIMIT = 60_000_000_000
KEPT_FREE = 3_000_000_000
"""Bytes of disk below which nothing is tried: a Mac without disk fails in its own ways."""

Free = Callable[[Path], int]


def free_disk(folder: Path) -> int:
    """Bytes that are free where the folder, or the first one above it that exists, is."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder; one that goes meanwhile counts nothing."""
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
    """Whether an error says that the disk is full: that is nobody's fault who was tried."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if isinstance(error, StorageError) and isinstance(error.__cause__, OSError):
        return is_full(error.__cause__)
    known = known_error(str(error))
    return "disk is full" in str(error) or (known is not None and known.code == NO_SPACE)


class CacheWatch:
    """The disk since a run began with `free` bytes, of which the caches of the system may take `limit`."""

    def __init__(self, folder: Path, free: int, limit: int = CACHE_LIMIT, free_now: Free = free_disk) -> None:
        self._folder, self._free, self._limit, self._free_now = folder, free, limit, free_now

    @property
    def taken(self) -> int:
        """Bytes that are gone and not in the folder: about what the system's caches took."""
        return max(0, self._free - self._free_now(self._folder) - size_of(self._folder))

    def full(self) -> str | None:
        """Why nothing more should be tried; None where there is room."""
        if (free := self._free_now(self._folder)) < KEPT_FREE:
            return f"{bytes_text(free)} of disk are free, and {bytes_text(KEPT_FREE)} are left to the system"
        if (taken := self.taken) > self._limit:
            limit = bytes_text(self._limit)
            return f"the system's caches took {bytes_text(taken)} of disk, more than {limit} (--cache-limit)"
        return None
