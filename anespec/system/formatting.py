"""Format sizes and untrusted texts for people."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

LONGEST_SHOWN = 80

LONGEST_REASON = 400
"""Characters of a sentence that something else wrote, such as a library."""

MOST_NAMED = 12
"""Names that a sentence lists."""

_MOVES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tabs and line ends, marks of direction, and halves of characters."""


def bytes_text(count: int) -> str:
    """A byte count in decimal units, e.g. `1.23 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def duration_text(seconds: float) -> str:
    """A time span for people, e.g. `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, e.g. `1 token`, `2 head shards`; `plural` if it is not the noun with an
    s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def listed(parts: Sequence[str], last: str = "and") -> str:
    """Parts of a sentence as a list, e.g. `a, b and c`."""
    return f" {last} ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def named(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Names out of files or from people as a list, the first of them where there are many."""
    more = ["others"] if len(names) > most else []
    return listed([*map(printable, names[:most]), *more])


def quoted(text: str, limit: int = LONGEST_SHOWN) -> str:
    """A text out of a file as a message may show it: in quotes, printable, and not long."""
    return repr(_cut(text, limit))


def printable(text: str, limit: int = LONGEST_SHOWN) -> str:
    """Like `quoted` without the quotes: what would move a terminal's cursor is escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in _cut(text, limit))


def last_line(said: str) -> str:
    """Return the last line of a program's output, for a sentence; empty if there is none."""
    lines = said.strip().splitlines()
    return printable(lines[-1].strip(), LONGEST_REASON) if lines else ""


def shown(value: object) -> str:
    """Any value out of a file as a message may show it: a text in quotes, printable, and not long."""
    try:
        return quoted(value) if isinstance(value, str) else printable(str(value))
    except ValueError:
        # Python writes no integer so long, not even within a list.
        return "a number of thousands of digits"


def sanitize_terminal(text: str) -> str:
    """A text of any length as a terminal may show it: what moves its cursor or turns lines is escaped."""
    return _MOVES.sub(lambda found: repr(found[0])[1:-1], text)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def short_path(path: Path) -> str:
    """A path as a shell takes it, with ~ for the user's home where it lies there."""
    with contextlib.suppress(RuntimeError, ValueError):
        return f"~/{path.relative_to(Path.home())}"
    return str(path)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape for people; what follows T is a question mark."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
