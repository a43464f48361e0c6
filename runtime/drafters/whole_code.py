"""Whether compiled code is as it was written: whoever runs what a crash of the machine left of it may crash.

The compiler sees to it that nobody reads a file that is being written. But what it wrote is on the disk only
some time later, and is not checked when it is loaded. So a list of checksums lies beside it.
"""

import contextlib
import zlib
from pathlib import Path

from pydantic import ValidationError

from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.manifests.schema import Record

LIST_NAME = "whole.json"
LARGEST_LIST = 1 << 22
MARKER = "*.compiled"


class Whole(Record):
    """The CRC-32 of each file of code, by its path in the folder."""

    files: dict[str, int]


def note_whole(folder: Path) -> None:
    """Remember what the code in a folder is. Raises OSError or StorageError where that cannot be written."""
    found = Whole(files=_sums(folder))
    if found != _noted(folder):
        with Folder.open(folder) as opened:
            opened.replace(LIST_NAME, found.model_dump_json().encode())


def drop_damaged(folder: Path) -> None:
    """Remove code that is not as it was noted, and what says that all is compiled; it is compiled anew.

    Code that was never noted is left: somebody may be compiling it.
    """
    noted = _noted(folder)
    if noted is None:
        return
    now = _sums(folder)
    damaged = [name for name, sum_then in noted.files.items() if now.get(name) != sum_then]
    if damaged:
        for path in (*(folder / name for name in damaged if name in now), *folder.glob(MARKER)):
            path.unlink(missing_ok=True)
        (folder / LIST_NAME).unlink(missing_ok=True)


def forget_function(folder: Path, name: str) -> None:
    """Remove what is kept of all functions of a name."""
    for path in folder.rglob(f"*.{name}-*"):
        path.unlink(missing_ok=True)


def _sums(folder: Path) -> dict[str, int]:
    sums = {}
    for path in sorted(folder.glob("*/*.nb[ic]")):
        # Another process may replace one meanwhile.
        with contextlib.suppress(FileNotFoundError):
            sums[path.relative_to(folder).as_posix()] = zlib.crc32(path.read_bytes())
    return sums


def _noted(folder: Path) -> Whole | None:
    try:
        with Folder.open(folder) as opened:
            return Whole.model_validate_json(opened.read(LIST_NAME, LARGEST_LIST))
    except (OSError, StorageError, ValidationError):
        return None
