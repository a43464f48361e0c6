"""Keep compiled code in the user's cache, in one folder for each state of this package's sources.

So code that was compiled from other sources is never used, wherever the package is installed, and whether or
not its folder is writable.
"""

import contextlib
import hashlib
import importlib
import logging
import os
import platform
import re
import shutil
import zlib
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from anespec.manifests.schema import Record
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder, require_safe_to_run
from anespec.system.user_folders import NAME, cache_folder, private_folder

# The compiler ensures that no file is read while it is written. But the system writes it to the disk later,
# a crash may damage it, and the compiler does not check it at load. So a list of checksums is stored with the
# code.

LIST_NAME = "whole.json"
MAX_LIST_BYTES = 1 << 22
MARKER = "*.compiled"


class Whole(Record):
    """The CRC-32 of each file of compiled code, by its path in the folder."""

    files: dict[str, int]


def note_whole(folder: Path) -> None:
    """Write the list of checksums of the code in a folder.

    Raises:
        OSError, StorageError: the list cannot be written.
    """
    found = Whole(files=_sums(folder))
    if found != _noted(folder):
        with Folder.open(folder) as opened:
            opened.replace(LIST_NAME, found.model_dump_json().encode())


def drop_damaged(folder: Path) -> None:
    """Remove damaged code and the markers that everything is compiled, so that it is compiled again.

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
    """Remove the stored code of all functions with this name."""
    for path in folder.rglob(f"*.{name}-*"):
        path.unlink(missing_ok=True)


def _sums(folder: Path) -> dict[str, int]:
    sums = {}
    for path in sorted(folder.glob("*/*.nb[ic]")):
        # Another process may replace a file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            sums[path.relative_to(folder).as_posix()] = zlib.crc32(path.read_bytes())
    return sums


def _noted(folder: Path) -> Whole | None:
    try:
        with Folder.open(folder) as opened:
            return Whole.model_validate_json(opened.read(LIST_NAME, MAX_LIST_BYTES))
    except (OSError, StorageError, ValidationError):
        return None


_log = logging.getLogger(__name__)

KEPT_FOLDERS = 4
"""The number of states of the sources whose compiled code is kept."""

CODE_FOLDER = "code"
"""The folder of the cache that holds compiled code. (Its folder `compiled` holds models compiled by Core
ML.)"""

_CHOSEN_FOLDER = "NUMBA_CACHE_DIR"
"""The variable that names another folder for compiled code."""

STATE_DIGITS = 16
_STATE = re.compile(f"[0-9a-f]{{{STATE_DIGITS}}}")

_MODULES = {
    "auto": "anespec.runtime.drafters.auto",
    "mix": "anespec.runtime.drafters.mix.source",
    "mod": "anespec.runtime.drafters.mod",
    "datastore": "anespec.runtime.drafters.datastore.source",
    "recycle": "anespec.runtime.drafters.recycle",
    "jacobi": "anespec.runtime.drafters.jacobi",
}
"""The modules of the sources with compiled code. Importing one compiles its code, or loads it."""

_PARTS_OF_AUTO = ("mix", "datastore", "recycle", "jacobi")
"""The sources whose code is part of the code of auto."""


def import_compiled(name: str) -> None:
    """Compile or load the code of a source; do nothing for a source without compiled code."""
    if name in _MODULES:
        importlib.import_module(_MODULES[name])


def is_compiled(name: str) -> bool:
    """Return whether all code of a source is compiled, so that it loads in less than a second."""
    folder = code_folder()
    names = (name, "auto") if name in _PARTS_OF_AUTO else (name,)
    return folder is not None and any((folder / f"{each}.compiled").exists() for each in names)


def must_compile(name: str) -> bool:
    """Return whether opening a source now would first compile it, for some ten seconds."""
    return name in _MODULES and not is_compiled(name)


def note_compiled(name: str) -> None:
    """Record that all code of a source is compiled; do nothing if there is no folder to record it in."""
    folder = code_folder()
    if folder is not None:
        with suppress(OSError, StorageError):
            note_whole(folder)
            (folder / f"{name}.compiled").touch()


@cache
def code_folder() -> Path | None:
    """Return the folder of these sources' compiled code; None if it cannot be used.

    Its content is executed. So no other user may write there, and damaged code is removed.
    """
    try:
        base = _own_folder()
        folder = base / CODE_FOLDER / _state_of_sources()
        with private_folder(folder, base) as opened:
            require_safe_to_run(folder, "compiled code", _CHOSEN_FOLDER)
            # Another user may have put files there while the folder was writable to them.
            opened.remove_traps()
        os.utime(folder)
        drop_damaged(folder)
        _drop_old(folder.parent)
    except StorageError as error:
        _log.warning("compiled drafting code cannot be stored, so every process compiles it: %s", error)
        return None
    except OSError as error:
        _log.info("compiled drafting code cannot be stored: %s", error)
        return None
    return folder


def _own_folder() -> Path:
    """Return the folder above all states: the user's cache, or a folder in $NUMBA_CACHE_DIR.

    A relative path is ignored, since it would depend on the current folder, whose content is not trusted.
    """
    given = Path(os.environ.get(_CHOSEN_FOLDER, ""))
    return given / NAME if given.is_absolute() else cache_folder()


def _state_of_sources() -> str:
    """Return a hash of the inputs that the compiled code depends on; numba itself accounts for the processor.

    Numba checks a source's path and modification time. So another installation has another state.
    """
    digest = hashlib.sha256(f"{version('numba')} {platform.python_version()}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(f"{path} {path.stat().st_mtime_ns} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:STATE_DIGITS]


def _drop_old(base: Path) -> None:
    """Remove all but the KEPT_FOLDERS most recently used states; other folders are not touched."""
    found = [path for path in base.iterdir() if _STATE.fullmatch(path.name)]
    for folder in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT_FOLDERS:]:
        with suppress(OSError):
            shutil.rmtree(folder)
