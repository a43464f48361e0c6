"""What every download has: its file, the room that it needs, and the progress that it shows."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text
from anespec.system.progress import Progress

Display = Callable[[str], AbstractContextManager[Progress]]
"""Shows the progress of what the title says while the block lasts."""

ROOM_KEPT = 100_000_000
"""Bytes of a disk that no download takes: what else runs there needs some."""


@dataclass(frozen=True)
class Fetched:
    """A model's file on this machine.

    `origin` is where it came from, by the name that leads to just this file; None where it lay here before.
    `reason` says why this file was taken, where a person did not name one. `bytes` came now.
    """

    path: Path
    origin: str | None = None
    reason: str | None = None
    bytes: int = 0


def require_room(folder: Path, name: object, missing: int, there: int = 0) -> None:
    """Raise StorageError where a folder's disk has no room for so many bytes of a download more.

    Bytes that are `there` already and give way count as room.
    """
    if not has_room(folder, missing - there):
        room = shutil.disk_usage(folder).free
        raise StorageError(
            f"{folder}: has room for {bytes_text(room)}, and {name} takes {bytes_text(missing)}; "
            f"{bytes_text(ROOM_KEPT)} stay free"
        )


def has_room(folder: Path, missing: int) -> bool:
    """Whether a folder's disk takes so many bytes of a download more, and keeps ROOM_KEPT free."""
    return shutil.disk_usage(folder).free - ROOM_KEPT >= missing
