"""Writing and removing what has the system start a daemon (units)."""

from pathlib import Path

from anespec.manifests.errors import StorageError, UsageError
from anespec.manifests.safe_files import Folder
from anespec.serving.units import MARK, Unit

LARGEST_UNIT = 1 << 20


def install(unit: Unit, force: bool) -> bool:
    """Write the unit; return whether there was a change to write.

    Raises:
        UsageError: something else stands there, and `force` was not given.
        StorageError: the file system refuses.
    """
    present = _present(unit.path)
    if present == unit.text:
        return False
    if present is not None and not force:
        whose = "says otherwise" if MARK in present else "is not of anespec"
        raise UsageError(f"{unit.path}: stands there and {whose}; --force replaces it")
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(unit.path.parent) as folder:
            folder.replace_parts(unit.path.name, (unit.text.encode(),), mode=0o644)
    except OSError as error:
        raise StorageError(f"{unit.path}: cannot be written ({error.strerror})") from error
    return True


def uninstall(path: Path, force: bool) -> bool:
    """Remove the unit; return whether it existed.

    Raises:
        UsageError: anespec did not write what stands there, and `force` was not given.
        StorageError: the file system refuses.
    """
    present = _present(path)
    if present is None:
        return False
    if MARK not in present and not force:
        raise UsageError(f"{path}: is not of anespec; --force removes it")
    try:
        path.unlink()
    except OSError as error:
        raise StorageError(f"{path}: cannot be removed ({error.strerror})") from error
    return True


def _present(path: Path) -> str | None:
    """Return the current content of the file; None if there is none."""
    try:
        with Folder.open(path.parent) as folder:
            return folder.read(path.name, LARGEST_UNIT).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
