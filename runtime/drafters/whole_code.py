"""Verify that compiled code is intact: code that a crash of the machine damaged may crash the process that
runs it.

The compiler ensures that a file is not read while it is written. But the system writes it to the disk later,
and the compiler does not check it at load. So a list of checksums is stored with the code.
"""

import contextlib
import zlib
from pathlib import Path

from pydantic import ValidationError

from anespec.manifests.schema import Record
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

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
    """Remove damaged code, and the mark that all is compiled, so that it is compiled again.

    Code that is not in the list is kept: another process may be compiling it.
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
