"""Import numba so that it reads no settings from the current folder, now or at any later compilation.

numba reads `.numba_config.yaml` of the current folder when it is imported, and again whenever it compiles.
That file can name a module to import and a file to overwrite, so whoever owns the folder runs code here. No
option of numba turns this off. Its environment variables, which are the user's own, keep their effect.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

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
