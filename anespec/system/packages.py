"""Check optional packages, and return the command that installs a missing one."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit
from urllib.request import url2pathname

from anespec.system.errors import MissingPackageError

EXTRAS: Mapping[str, str | None] = MappingProxyType(
    {"torch": "torch", "mlx": "mlx", "coremltools": None, "huggingface_hub": None, "openvino": None}
)
"""The extra of anespec that installs each module; None if plain anespec does."""

LIBRARIES: Mapping[str, str] = MappingProxyType({"mlx": "lib/libmlx.*"})
"""The library in a module's folder that other packages bring: on Linux `mlx[cpu]` does, not `mlx`."""

WITH_TORCH = frozenset({"torch", "all"})
"""The extras that install torch."""

UV = "uv pip install"

CPU_TORCH = "https://download.pytorch.org/whl/cpu"
"""The index of torch's CPU-only builds."""


def missing_package(name: str) -> str | None:
    """Return what is missing if a package of EXTRAS cannot be imported, with the fix, as a clause that
    follows "needs"; None if it is installed.

    The package is not imported.
    """
    if (spec := find_spec(name)) is not None:
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        if name not in LIBRARIES or any(any(folder.glob(LIBRARIES[name])) for folder in folders):
            return None
    return f"the package {name}, which is not installed; install it with: {install_command(EXTRAS[name])}"


def require_package(name: str, purpose: str) -> None:
    """Check that a package of EXTRAS is installed.

    Raises:
        MissingPackageError: it is not installed; the message says that `purpose` needs it.
    """
    if (reason := missing_package(name)) is not None:
        raise MissingPackageError(f"{purpose} needs {reason}")


def install_command(extra: str | None) -> str:
    """Return the shell command that adds an extra to this installation, or what plain anespec needs.

    A clone that is installed in place is installed again, since its extras may be newer than the recorded
    ones. For an extra with torch, the command installs its CPU build on Linux; the one on the package index
    has CUDA, gigabytes of it.
    """
    wanted = "" if extra is None else f"[{extra}]"
    install = _install()
    clone = _clone()
    if clone is None:
        command = f"{install} {shlex.quote(f'anespec{wanted}')}"
    else:
        folder = "." if clone == Path.cwd() else str(clone)
        command = f"{install} -e {shlex.quote(f'{folder}{wanted}')}"
    if extra not in WITH_TORCH or sys.platform != "linux":
        return command
    if install.startswith(UV):
        return f"{command} --torch-backend cpu"
    return f"{install} torch --index-url {CPU_TORCH} && {command}"


def _install() -> str:
    """Return the command that installs into the running environment, which plain `pip` may not do."""
    if (Path(sys.prefix) / "pipx_metadata.json").exists():
        return "pipx runpip anespec install"
    if find_spec("pip") is None:
        return f"{UV} --python {_python()}"
    found = shutil.which("pip")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip install" if ours else f"{_python()} -m pip install"


def _python() -> str:
    executable = Path(sys.executable)
    here = executable.relative_to(Path.cwd()) if executable.is_relative_to(Path.cwd()) else executable
    return shlex.quote(str(here))


def _clone() -> Path | None:
    """Return the source folder of an editable installation (`pip install -e`); None for any other.

    A build also leaves metadata in the source folder; they do not mean that it is installed.
    """
    for found in distributions(name="anespec"):
        facts = json.loads(found.read_text("direct_url.json") or "{}")
        if facts.get("dir_info", {}).get("editable", False):
            return Path(url2pathname(urlsplit(facts["url"]).path))
    return None
