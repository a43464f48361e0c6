"""The one place that knows how what must be fast is compiled.

Functions are compiled by numba for the processor that they run on, once: their machine code is kept in the
user's cache, in a folder for each state of this package's sources, so that what was compiled of other sources
is never used, wherever the package is installed and whether or not it may be written to. Every function has
one signature. So two processes that compile it at once write the same, and whoever comes second does no harm.

Nothing here is imported before a source is opened that needs it: numba takes its time to load.
"""

import hashlib
import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config

from anespec.manifests.errors import StorageError
from anespec.manifests.user_folders import cache_folder, private_folder

_log = logging.getLogger(__name__)

KEPT_FOLDERS = 4
"""Of so many states of the sources the compiled form is kept."""

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def compiled(signature: str) -> Callable[[AnyFunction], AnyFunction]:
    """Compile a function for one signature, as numba writes it, now, or load what was compiled before.

    The code is deterministic: no fused or reordered floating point, no threads. Division by zero gives what
    numpy gives. Where no folder can be written to it is compiled by each process.
    """
    return _decorator(signature, counts=True)


def compiled_lean(signature: str) -> Callable[[AnyFunction], AnyFunction]:
    """The same for a function that makes no arrays: references to arrays are not counted in it.

    Counting takes two atomic operations for every array at every call, several times what a small function
    does. One that makes an array all the same does not compile.
    """
    return _decorator(signature, counts=False)


def _decorator(signature: str, counts: bool) -> Callable[[AnyFunction], AnyFunction]:
    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "_nrt": counts}
    # Nobody calls them from C; without this a sixth of the time to compile is gone.
    options["no_cfunc_wrapper"] = True

    def decorate(function: AnyFunction) -> AnyFunction:
        folder = _folder()
        if folder is not None:
            try:
                with _cached_in(folder):
                    return cast(AnyFunction, numba.njit(signature, cache=True, **options)(function))
            except (OSError, RuntimeError) as error:
                _log.info("%s is compiled without a cache: %s", function.__name__, error)
        return cast(AnyFunction, numba.njit(signature, **options)(function))

    return decorate


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    """Have numba keep in `folder` what is compiled meanwhile; others who use it keep their own."""
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> Path | None:
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
    digest = hashlib.sha256(f"{numba.__version__} {platform.python_version()}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _drop_old(base: Path) -> None:
    """Remove the folders that were used longest ago."""
    folders = sorted(base.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[KEPT_FOLDERS:]:
        with suppress(OSError):
            shutil.rmtree(folder)
