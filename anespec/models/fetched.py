"""Define the result of a download, and check the disk space for it."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text
from anespec.system.progress import Progress

Display = Callable[[str], AbstractContextManager[Progress]]
"""A function that takes a title and returns a context; progress is shown inside the context."""

ROOM_KEPT = 100_000_000
"""Bytes of free space that downloads leave for other programs."""


@dataclass(frozen=True)
class Fetched:
    """A model's file on this machine.

    `origin` is the remote name of exactly this file; None for a local file. `reason` says why this file of a
    repository was chosen, if the user named none. `bytes` is how much was downloaded now.
    """

    path: Path
    origin: str | None = None
    reason: str | None = None
    bytes: int = 0


def require_room(folder: Path, name: object, missing: int, there: int = 0) -> None:
    """Raise StorageError if a folder's disk has no space for `missing` more bytes of a download.

    `there` are bytes on the disk that the download replaces; they count as free space.
    """
    if not has_room(folder, missing - there):
        room = shutil.disk_usage(folder).free
        raise StorageError(
            f"{folder}: has room for {bytes_text(room)}, and {name} takes {bytes_text(missing)}; "
            f"{bytes_text(ROOM_KEPT)} stay free"
        )


def has_room(folder: Path, missing: int) -> bool:
    """Return whether a folder's disk has space for `missing` more bytes, and ROOM_KEPT beyond them."""
    return shutil.disk_usage(folder).free - ROOM_KEPT >= missing
