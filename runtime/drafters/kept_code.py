"""Where compiled code is kept: in the user's cache, in a folder for each state of this package's sources.

So what was compiled of other sources is never used, wherever the package is installed and whether or not it
may be written to.
"""

import hashlib
import importlib
import logging
import os
import platform
import shutil
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from anespec.manifests.errors import StorageError
from anespec.manifests.user_folders import cache_folder, private_folder

_log = logging.getLogger(__name__)

KEPT_FOLDERS = 4
"""Of so many states of the sources the compiled form is kept."""


_MODULES = {
    "auto": "anespec.runtime.drafters.auto",
    "mix": "anespec.runtime.drafters.mix.source",
    "mod": "anespec.runtime.drafters.mod",
    "suffix": "anespec.runtime.drafters.suffix",
    "datastore": "anespec.runtime.drafters.datastore.source",
    "recycle": "anespec.runtime.drafters.recycle",
    "jacobi": "anespec.runtime.drafters.jacobi",
}
"""Of the sources that are compiled. Importing one compiles it, or loads what was compiled."""


def import_compiled(name: str) -> None:
    """Compile what a source needs, or load it; nothing for a source that is not compiled."""
    if name in _MODULES:
        importlib.import_module(_MODULES[name])


def is_compiled(name: str) -> bool:
    """Whether all that a source needs was compiled, so that it loads in less than a second."""
    folder = code_folder()
    return folder is not None and (folder / f"{name}.compiled").exists()


def note_compiled(name: str) -> None:
    """Remember that all that a source needs is compiled; nothing where it is not kept."""
    folder = code_folder()
    if folder is not None:
        with suppress(OSError):
            (folder / f"{name}.compiled").touch()


@cache
def code_folder() -> Path | None:
    """Where the compiled form of these sources lies; None where there is no such place."""
    try:
        given = os.environ.get("NUMBA_CACHE_DIR", "")
        base = Path(given) if given else cache_folder() / "compiled"
        folder = base / _state_of_sources()
        if given:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            # What lies there is run, so nobody else may write there.
            with private_folder(folder):
                pass
        os.utime(folder)
        _drop_old(base)
    except (OSError, StorageError) as error:
        _log.info("what is compiled is not kept: %s", error)
        return None
    return folder


def _state_of_sources() -> str:
    """What the compiled form depends on; numba itself sees to the processor."""
    digest = hashlib.sha256(f"{version('numba')} {platform.python_version()}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _drop_old(base: Path) -> None:
    """Remove the folders that were used longest ago."""
    folders = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[KEPT_FOLDERS:]:
        with suppress(OSError):
            shutil.rmtree(folder)
