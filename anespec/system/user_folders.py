"""Locate this user's folders for caches, state and configuration.

They follow the XDG base directories; on a Mac they are in ~/Library. Each is private to its user. A folder
that belongs to another user, or is a link, is refused, since its content is trusted later.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

NAME = "anespec"


def cache_folder() -> Path:
    """Return the cache folder; it need not exist. Raises StorageError if there is no home folder."""
    return _base("XDG_CACHE_HOME", ".cache", "Library/Caches") / NAME


def state_folder() -> Path:
    """Return the folder of state, such as the chat history; raises like `cache_folder`."""
    return _base("XDG_STATE_HOME", ".local/state", "Library/Application Support") / NAME


def config_folder() -> Path:
    """Return the folder of configuration written by the user, such as presets; raises like `cache_folder`."""
    return _base("XDG_CONFIG_HOME", ".config", "Library/Application Support") / NAME


def _own_folder_around(path: Path) -> Path:
    for folder in (cache_folder, state_folder):
        with suppress(StorageError):
            if path.is_relative_to(folder()):
                return folder()
    return path


def _base(variable: str, below_home: str, on_a_mac: str) -> Path:
    # The XDG specification says to ignore relative paths.
    if Path(given := os.environ.get(variable, "")).is_absolute():
        return Path(given)
    try:
        home = Path.home()
    except RuntimeError:
        home = Path()
    if not home.is_absolute():
        raise StorageError(f"this user has no home folder; set {variable} to a folder of your own")
    return home / (on_a_mac if sys.platform == "darwin" else below_home)


@contextmanager
def private_folder(path: Path, base: Path | None = None) -> Iterator[Folder]:
    """Open a folder that only this user can enter; create it if it is missing.

    Other users lose their permissions on it and on all folders between it and `base`. `base` is one of its
    parents, or the folder itself (the default). The folders above `base` are not changed, since the user may
    have chosen them.

    Raises:
        StorageError: the folder is a link or belongs to another user, or the file system refuses.
    """
    base = base or _own_folder_around(path)
    with ExitStack() as stack:
        try:
            _make_with_parents(base.parent)
            folder = stack.enter_context(Folder.open(base.parent))
            for name in (base.name, *path.relative_to(base).parts):
                folder = stack.enter_context(folder.folder(name, create=True, mode=0o700))
                folder.make_private()
        except OSError as error:
            raise StorageError(f"{path}: cannot be used ({error.strerror})") from error
        yield folder


def _make_with_parents(path: Path) -> None:
    """Create a folder and its missing parents, accessible to this user only from the beginning."""
    if not path.is_dir():
        _make_with_parents(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
