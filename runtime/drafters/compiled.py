"""Compile performance-critical functions with numba; only this module uses numba directly.

A function is compiled once for each processor, and its machine code is stored on disk (see kept_code). Every
function has one signature. So two processes that compile a function at once write the same file, and the
second write is harmless.

This module is imported only when a source that needs it is opened, since numba takes long to load.
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

# numba reads `.numba_config.yaml` from the current folder when it is imported, and again whenever it
# compiles. That file can name a module to import and a file to overwrite. So the owner of the folder could
# run code in this process, and no option of numba turns this off. import_numba imports numba so that it never
# reads the file. The environment variables of numba are the user's own, and keep their effect.

_CONFIG = "numba.core.config"
_FILE_NAME = ".numba_config.yaml"
_NO_FILE = ""
"""A name that no file has, so numba reads none."""


def import_numba() -> ModuleType:
    """Import numba so that it reads no settings from the current folder; return the module.

    If numba was imported before, settings that it has read from such a file are reset.

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
    """A finder of numba's settings module alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's specification with a _ConfigLoader; None for any other module."""
        if fullname != _CONFIG:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, InspectLoader):
            spec.loader = _ConfigLoader(spec.loader)
        return spec


class _ConfigLoader(Loader):
    """A loader that replaces the file's name in the code of numba's settings module.

    The module reads the file while it is imported, so a change afterwards would be too late. Hiding the yaml
    package would also work, but another thread may need the package at that moment.
    """

    def __init__(self, loader: InspectLoader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code with the name replaced.

        Raises:
            ImportError: the code does not contain the file's name.
        """
        code = self._loader.get_code(_CONFIG)
        if not isinstance(code, CodeType) or _FILE_NAME not in code.co_consts:
            raise ImportError(
                f"this version of numba cannot be kept from reading {_FILE_NAME} of the current folder; "
                "install a version that anespec supports (see its requirements)",
                name=_CONFIG,
            )
        names = tuple(_NO_FILE if each == _FILE_NAME else each for each in code.co_consts)
        exec(code.replace(co_consts=names), module.__dict__)


_log = logging.getLogger(__name__)

numba: Any = import_numba()

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def structure(kind: type[tuple[Any, ...]], fields: str) -> Any:
    """Return the numba type of a named tuple, for `takes`; `fields` are its fields' types in numba's syntax.

    Compiled code reads a field at no cost, so arrays that belong together are passed as one tuple.
    """
    types, _ = numba.core.sigutils.normalize_signature(f"void({fields})")
    return numba.types.BaseTuple.from_types(types, kind)


def takes(*arguments: Any, returns: str = "void") -> Any:
    """Return the signature of a function with these arguments: types in numba's syntax, or `structure`s."""
    types: list[Any] = []
    for argument in arguments:
        is_text = isinstance(argument, str)
        types += numba.core.sigutils.normalize_signature(f"void({argument})")[0] if is_text else [argument]
    _, result = numba.core.sigutils.normalize_signature(f"{returns}()")
    return result(*types)


def direct(function: AnyFunction) -> AnyFunction:
    """Return the entry point of a compiled function, which Python calls without numba's choice of a
    signature.

    That choice takes several microseconds for a few structures of arrays, and there is only one signature.
    Arrays of another type or rank still raise TypeError. The caller must pass contiguous arrays.
    """
    (only,) = cast(Any, function).overloads.values()
    return cast(AnyFunction, only.entry_point)


def compiled(signature: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Compile a function at once for one signature, or load its stored machine code.

    The signature is in numba's syntax or comes from `takes`. The code is deterministic: no fused or reordered
    floating point, no threads. Division by zero gives what numpy gives. If no folder is writable, each
    process compiles the function.
    """
    return _decorator(signature, counts=True)


def compiled_lean(signature: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Compile as `compiled` does, for a function that allocates no arrays: array references are not counted.

    Counting takes two atomic operations for every array at every call, several times the work of a small
    function. A function that does allocate an array fails to compile.
    """
    return _decorator(signature, counts=False)


def _decorator(signature: Any, counts: bool) -> Callable[[AnyFunction], AnyFunction]:
    options: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "_nrt": counts}
    # The functions are not called from C. Compiling no C wrapper saves a sixth of the time.
    options["no_cfunc_wrapper"] = True

    def decorate(function: AnyFunction) -> AnyFunction:
        folder = code_folder()
        kept = None if folder is None else _kept(folder, function, signature, options)
        return cast(AnyFunction, numba.njit(signature, **options)(function)) if kept is None else kept

    return decorate


def _kept(folder: Path, function: AnyFunction, signature: str, options: dict[str, Any]) -> AnyFunction | None:
    """Compile a function and store its code, or load its stored code; return None if neither is possible."""
    for _ in range(2):
        try:
            with _cached_in(folder):
                return cast(AnyFunction, numba.njit(signature, cache=True, **options)(function))
        except (OSError, RuntimeError) as error:
            _log.info("%s is compiled without a cache: %s", function.__name__, error)
            return None
        except Exception as error:
            # Damaged code may raise any exception at load; compiling again replaces it.
            _log.info("%s is compiled again, since its stored code failed: %r", function.__name__, error)
            with suppress(OSError):
                forget_function(folder, function.__name__)
    return None


@contextmanager
def _cached_in(folder: Path) -> Iterator[None]:
    """Let numba store functions that are compiled within this context in `folder`; restore its own after."""
    config = numba.core.config
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
