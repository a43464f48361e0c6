"""Read TOML files that users write."""

import re
import tomllib
from pathlib import Path
from typing import Any

from anespec.system.errors import UsageError, unreadable
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.safe_files import read_bounded

LARGEST_FILE = 1 << 20
"""The most bytes of a file."""

MOST_PARTS = 16
"""The most parts of a key such as `a.b.c`. tomllib's time grows with the square of their number: minutes for
a large file."""

_PART = r"""(?:[A-Za-z0-9_+-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
    r"|#[^\n]*+"
    rf"|{_PART}(?P<rest>(?:[ \t]*+\.[ \t]*+{_PART})*+)",
    re.DOTALL,
)
"""A multi-line text, a comment, or parts joined by dots: a key, or a value of one or two parts."""

_DOTTED = re.compile(rf"\.[ \t]*+{_PART}", re.DOTALL)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        StorageError: the file cannot be read, or is larger than LARGEST_FILE.
        UsageError: the file is not TOML, or a key has more than MOST_PARTS parts.
    """
    try:
        text = read_bounded(path, LARGEST_FILE).decode()
        _require_short_keys(path, text)
        return tomllib.loads(text)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid TOML ({printable(str(error), LONGEST_REASON)})") from None


def _require_short_keys(path: Path, text: str) -> None:
    for found in _TOKEN.finditer(text):
        rest = found["rest"]
        if rest and len(_DOTTED.findall(rest)) >= MOST_PARTS:
            line = text.count("\n", 0, found.start()) + 1
            raise UsageError(
                f"{path}: line {line} has a key of more than {MOST_PARTS} parts, and no option has that many"
            )
