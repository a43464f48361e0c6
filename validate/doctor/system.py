"""The machine that the doctor checks: its commands, packages, memory and disk.

Tests replace it with the recorded answers of real machines.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from anespec.runtime.backends.worker.build import built_worker
from anespec.system.child_python import NEUTRAL_FOLDER
from anespec.system.errors import AnespecError
from anespec.system.machine import free_memory, machine_memory, machine_name, processors

LONGEST_WAIT = 20.0
"""The time limit of a command in seconds; system_profiler takes one or two."""


class System(Protocol):
    """A machine. None of its methods raises."""

    @property
    def name(self) -> str:
        """Return the name of the system as `platform.system()` does: `Darwin`, `Linux`."""
        ...

    @property
    def processor(self) -> str:
        """Return the processor's name, if it is known without running a command."""
        ...

    @property
    def python(self) -> tuple[str, str]:
        """Return Python's version and the architecture that it was built for."""
        ...

    def output_of(self, *command: str) -> str | None:
        """Return the stripped standard output of a command; None if it fails."""
        ...

    def version(self, package: str) -> str | None:
        """Return the version of an installed Python package; None if it is not installed."""
        ...

    def has_module(self, module: str) -> bool:
        """Return whether a Python module can be found."""
        ...

    def has_worker(self) -> bool:
        """Return whether the native worker was built."""
        ...

    def processors(self) -> int:
        """Return the number of processors that this process may use."""
        ...

    def memory(self) -> tuple[int, int]:
        """Return the bytes of memory: all, and free."""
        ...

    def room(self, folder: Path) -> int | None:
        """Return the free bytes on the disk that holds a folder, or its nearest parent that exists."""
        ...

    def held(self, folder: Path) -> int:
        """Return the bytes of all files below a folder; 0 if it does not exist."""
        ...


class ThisSystem:
    """The machine that this program runs on; see System."""

    @property
    def name(self) -> str:
        """See System."""
        return platform.system()

    @property
    def processor(self) -> str:
        """See System."""
        return machine_name().partition(" ")[2]

    @property
    def python(self) -> tuple[str, str]:
        """See System."""
        return platform.python_version(), platform.machine()

    def output_of(self, *command: str) -> str | None:
        """See System."""
        errors = (OSError, subprocess.SubprocessError, UnicodeDecodeError)
        # `swift --version` leaves folders behind in TMPDIR.
        with contextlib.suppress(*errors), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LONGEST_WAIT, check=True,
                stdin=subprocess.DEVNULL, cwd=NEUTRAL_FOLDER, env={**os.environ, "TMPDIR": scratch},
            )  # fmt: skip
            return done.stdout.strip()
        return None

    def version(self, package: str) -> str | None:
        """See System."""
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
        return None

    def has_module(self, module: str) -> bool:
        """See System."""
        with contextlib.suppress(ImportError, ValueError):
            return find_spec(module) is not None
        return False

    def has_worker(self) -> bool:
        """See System."""
        with contextlib.suppress(AnespecError):
            return built_worker() is not None
        return False

    def processors(self) -> int:
        """See System."""
        return processors()

    def memory(self) -> tuple[int, int]:
        """See System."""
        return machine_memory(), free_memory()

    def room(self, folder: Path) -> int | None:
        """See System."""
        for place in (folder, *folder.resolve().parents):
            with contextlib.suppress(OSError):
                return shutil.disk_usage(place).free
        return None

    def held(self, folder: Path) -> int:
        """See System."""
        total = 0
        with contextlib.suppress(OSError):
            for path in folder.rglob("*"):
                with contextlib.suppress(OSError):
                    total += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
        return total
