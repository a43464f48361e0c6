"""Compile performance-critical functions; no other module knows how.

Functions are compiled by numba for the processor that they run on, once: their machine code is kept (see
kept_code). Every function has one signature. So two processes that compile a function at once write the same
file, and the second write is harmless.

Nothing here is imported before a source is opened that needs it: numba takes its time to load.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar, cast

from anespec.runtime.drafters.kept_code import code_folder, forget_function

# Import numba so that it reads no settings from the current folder, now or at any later compilation.
#
# numba reads `.numba_config.yaml` of the current folder when it is imported, and again whenever it compiles.
# That file can name a module to import and a file to overwrite, so whoever owns the folder runs code here. No
# option of numba turns this off. Its environment variables, which are the user's own, keep their effect.

_CONFIG = "numba.core.config"
_FILE_NAME = ".numba_config.yaml"
_NO_FILE = ""
"""No file has this name, so numba finds none."""


def import_numba() -> ModuleType:
    """Import numba, or return the module where it is imported already.

    A process that had imported it before loses what numba took from such a file.

    Raises:
        ImportError: this version of numba cannot be kept from reading the file.
    """
    loaded: Any = sys.modules.get(_CONFIG)
    if loaded is None:
        finder = _ConfigFinder()
        sys.meta_path.insert(0, finder)
        try:
            return importlib.import_module("numba")
        finally:
            sys.meta_path.remove(finder)
    if loaded._config_fname != _NO_FILE:
        loaded._config_fname = _NO_FILE
        loaded.reload_config()
    return importlib.import_module("numba")


class _ConfigFinder(MetaPathFinder):
    """Finds numba's module of settings, and no other."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of the module, with a loader that changes it."""
        if fullname != _CONFIG:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, InspectLoader):
            spec.loader = _ConfigLoader(spec.loader)
        return spec


class _ConfigLoader(Loader):
    """Runs numba's module of settings with another name in place of the file's.

    The module reads the file while it runs, so changing it afterwards would be too late. Hiding the yaml
    package would do as well, but for every thread, and one of them may need it.
    """

    def __init__(self, loader: InspectLoader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code. Raises ImportError where it does not name the file as is known here."""
        code = self._loader.get_code(_CONFIG)
        if not isinstance(code, CodeType) or _FILE_NAME not in code.co_consts:
            raise ImportError(
                f"this version of numba cannot be kept from reading {_FILE_NAME} of the current folder; "
                "install a version that anespec asks for",
                name=_CONFIG,
            )
        names = tuple(_NO_FILE if each == _FILE_NAME else each for each in code.co_consts)
        exec(code.replace(co_consts=names), module.__dict__)


_log = logging.getLogger(__name__)

numba: Any = import_numba()

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def structure(kind: type[tuple[Any, ...]], fields: str) -> Any:
    """The type of a named tuple, for `takes`; `fields` are the types of its fields, as numba writes them.

    Compiled code reads a field at no cost, so what belongs together is passed together.
    """
    types, _ = numba.core.sigutils.normalize_signature(f"void({fields})")
    return numba.types.BaseTuple.from_types(types, kind)


def takes(*arguments: Any, returns: str = "void") -> Any:
    """The signature of a function of these arguments: structures, and types as numba writes them."""
    types: list[Any] = []
    for argument in arguments:
        is_text = isinstance(argument, str)
        types += numba.core.sigutils.normalize_signature(f"void({argument})")[0] if is_text else [argument]
    _, result = numba.core.sigutils.normalize_signature(f"{returns}()")
    return result(*types)


def direct(function: AnyFunction) -> AnyFunction:
    """A compiled function as Python calls it fastest: numba does not first look up which signature is meant.

    For a few structures of arrays that look takes several microseconds, and there is one signature. Arrays of
    another type or rank raise TypeError all the same; that they are contiguous the caller answers for.
    """
    (only,) = cast(Any, function).overloads.values()
    return cast(AnyFunction, only.entry_point)


def compiled(signature: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Compile a function for one signature, as numba writes it or `takes` makes it, now, or load what was
    compiled before.

    The code is deterministic: no fused or reordered floating point, no threads. Division by zero gives what
    numpy gives. Where no folder can be written to it is compiled by each process.
    """
    return _decorator(signature, counts=True)


def compiled_lean(signature: Any) -> Callable[[AnyFunction], AnyFunction]:
    """The same for a function that makes no arrays: references to arrays are not counted in it.

    Counting takes two atomic operations for every array at every call, several times what a small function
    does. One that makes an array all the same does not compile.
    """
    return _decorator(signature, counts=False)


def _decorator(signature: Any, counts: bool) -> Callable[[AnyFunction], AnyFunction]:
    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "_nrt": counts}
    # Nobody calls them from C; without this a sixth of the time to compile is gone.
    options["no_cfunc_wrapper"] = True

    def decorate(function: AnyFunction) -> AnyFunction:
        folder = code_folder()
        kept = None if folder is None else _kept(folder, function, signature, options)
        return cast(AnyFunction, numba.njit(signature, **options)(function)) if kept is None else kept

    return decorate


def _kept(folder: Path, function: AnyFunction, signature: str, options: dict[str, Any]) -> AnyFunction | None:
    """Compile a function and keep it, or load what was kept; None where that cannot be done."""
    for _ in range(2):
        try:
            with _cached_in(folder):
                return cast(AnyFunction, numba.njit(signature, cache=True, **options)(function))
        except (OSError, RuntimeError) as error:
            _log.info("%s is compiled without a cache: %s", function.__name__, error)
            return None
        except Exception as error:
            # Damaged code may raise any exception at load; compiling again repairs it.
            _log.info("what was kept of %s cannot be used: %r", function.__name__, error)
            with suppress(OSError):
                forget_function(folder, function.__name__)
    return None


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    """Let numba keep in `folder` the functions that are compiled meanwhile; other users of numba keep their
    own folder."""
    config = numba.core.config
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
