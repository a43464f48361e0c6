"""Say that a model does not exist, and what its name may have meant."""

import re
from pathlib import Path

from anespec.models.hub.name import SCHEME, HubName
from anespec.system.errors import NotFoundError, UsageError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
"""The beginning of a URL, as a path, in which a double slash is one."""

LISTED = "is no file, no folder and no model in the cache (`anespec list`)"


def missing_model(path: Path) -> NotFoundError:
    """Return the error for a name that is neither a path nor in the cache."""
    return NotFoundError(f"{path}: {LISTED}{meant(path)}")


def require_there(path: Path) -> None:
    """Raise NotFoundError if a file that a verb takes only by its path does not exist."""
    if not path.exists():
        raise NotFoundError(f"{path}: no such file{meant(path)}")


def meant(path: Path) -> str:
    """Return the end of a sentence that says why there is nothing at a path, or proposes a name; empty if
    neither is known."""
    if path.is_symlink():
        return f"; it is a link to {path.readlink()}, where nothing is"
    scheme = _SCHEME.match(str(path))
    if scheme is not None:
        return f"; {scheme[1]}: is not read: give a path, an https:// URL or hf:OWNER/REPO"
    owner = Path(*path.parts[:1])
    if path.is_absolute() or len(path.parts) < 2 or owner.exists():
        return ""
    try:
        return f"; if it is on the hub, write {HubName.parse(f'{SCHEME}{path}')}"
    except UsageError:
        return ""
