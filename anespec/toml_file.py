"""Files of options that a person writes, in TOML."""

import tomllib
from pathlib import Path
from typing import Any

from anespec.manifests.errors import StorageError, UsageError
from anespec.manifests.formatting import LONGEST_REASON, printable
from anespec.manifests.safe_files import read_bounded

LARGEST_FILE = 1 << 20
"""Bytes."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        StorageError: it cannot be read, or is larger than such a file may be.
        UsageError: it is no TOML.
    """
    try:
        return tomllib.loads(read_bounded(path, LARGEST_FILE).decode())
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no TOML ({printable(str(error), LONGEST_REASON)})") from None
