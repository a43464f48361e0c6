"""Makes what tests share once for all processes of a run."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


class Once:
    """Copies of folders that are made once for equal keys, whichever process asks first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, folders: pytest.TempPathFactory) -> "Once":
        """In the folder of the run, above those of its processes where it has several."""
        own = folders.getbasetemp()
        folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once"
        folder.mkdir(exist_ok=True)
        return cls(folder)

    def __call__(self, path: Path, make: Callable[[Path], object], *key: object) -> Path:
        """`path`, a copy of the folder of this name that `make` made; a file in the key means its bytes."""
        parts = [_digest(part) if isinstance(part, Path) else repr(part) for part in (path.name, *key)]
        made = self._folder / hashlib.sha256("\n".join(parts).encode()).hexdigest()
        with FileLock(f"{made}.lock"):
            if not made.exists():
                unfinished = made.with_suffix(".unfinished") / path.name
                shutil.rmtree(unfinished.parent, ignore_errors=True)
                unfinished.parent.mkdir()
                make(unfinished)
                unfinished.parent.rename(made)
        return Path(shutil.copytree(made / path.name, path, symlinks=True))


def _digest(file: Path) -> str:
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"
