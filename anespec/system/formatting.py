"""Format sizes, lists and untrusted texts for messages."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

LONGEST_SHOWN = 80

LONGEST_REASON = 400
"""The most characters of a message from elsewhere, such as a library."""

MOST_NAMED = 12
"""The most names that a message lists."""

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tabs and line ends, direction marks, and surrogates."""


def bytes_text(count: int) -> str:
    """Return a byte count in decimal units, e.g. `1.23 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def duration_text(seconds: float) -> str:
    """Return a time span, e.g. `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, e.g. `1 token`, `2 head shards`; `plural` is for irregular plurals."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Join parts of a sentence, e.g. `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def named(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Join untrusted names, with control characters escaped; only the first `most` of many are listed."""
    more = ["others"] if len(names) > most else []
    return listed([*map(printable, names[:most]), *more])


def quoted(text: str, limit: int = LONGEST_SHOWN) -> str:
    """Return an untrusted text for a message: quoted, with control characters escaped, and shortened."""
    return repr(_cut(text, limit))


def printable(text: str, limit: int = LONGEST_SHOWN) -> str:
    """Return an untrusted text for a message like `quoted`, without the quotes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in _cut(text, limit))


def last_line(said: str) -> str:
    """Return the last line of a program's output, for a sentence; empty if there is none."""
    lines = said.strip().splitlines()
    return printable(lines[-1].strip(), LONGEST_REASON) if lines else ""


def shown(value: object) -> str:
    """Return an untrusted value for a message: a text like `quoted`, other values shortened."""
    try:
        return quoted(value) if isinstance(value, str) else printable(str(value))
    except ValueError:
        # Python refuses to print an integer of that length, even inside a list.
        return "a number of thousands of digits"


def sanitize_terminal(text: str) -> str:
    """Return an untrusted text of any length for a terminal: control characters and direction marks are
    escaped."""
    return _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def short_path(path: Path) -> str:
    """Return a path quoted for a shell, with ~ for the user's home folder."""
    with contextlib.suppress(RuntimeError, ValueError):
        return f"~/{path.relative_to(Path.home())}"
    return str(path)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Return a shape for messages; a dimension that depends on T is a question mark."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
