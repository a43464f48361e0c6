"""Name the files of a GGUF in parts, NAME-00001-of-00003.gguf, as llama.cpp's `llama-gguf-split` does.

The first part stands for the whole. Whether a file is a part follows from its name alone, so that files can
be listed, hashed and downloaded unread; GGUFFile checks that their metadata says the same.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anespec.system.errors import GGUFError
from anespec.system.formatting import named

SUFFIX = ".gguf"
MOST_PARTS = 512
"""The most parts of a model. All are open at the same time."""

MOST_MISSING = 3
"""The most missing parts that a message lists."""

JOIN = "join the parts with llama.cpp's `llama-gguf-split --merge`, and give the file"

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class PartName:
    """The name or path of a part: `stem` is what stands before the numbers, `number` counts from 1."""

    stem: str
    number: int
    count: int

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name or a path; None if it is not that of a part."""
        found = _PART.fullmatch(name)
        if found is None:
            return None
        number, count = int(found["number"]), int(found["count"])
        return cls(found["stem"], number, count) if 1 <= number <= count else None

    def numbered(self, number: int) -> str:
        """Return the name of another part."""
        return f"{self.stem}-{number:05}-of-{self.count:05}{SUFFIX}"


def part_names(name: str, shown: object) -> tuple[str, ...]:
    """Return the names of all files of the GGUF with a name or path, itself first.

    Raises:
        GGUFError: it is a part other than the first, or has more parts than MOST_PARTS. The message calls it
            `shown`.
    """
    part = PartName.parse(name)
    if part is None or part.count == 1:
        return (name,)
    if part.number > 1:
        raise GGUFError(f"{shown}: is part {part.number} of {part.count}; give the first, {part.numbered(1)}")
    if part.count > MOST_PARTS:
        raise GGUFError(f"{shown}: has {part.count} parts, and at most {MOST_PARTS} can be read; {JOIN}")
    return names_of(part.stem, part.count)


def names_of(stem: str, count: int) -> tuple[str, ...]:
    """Return the names of all files of a GGUF in `count` parts; for 1 that of a file that is no part."""
    if count == 1:
        return (f"{stem}{SUFFIX}",)
    return tuple(PartName(stem, number, count).numbered(number) for number in range(1, count + 1))


def part_paths(gguf: Path) -> tuple[Path, ...]:
    """Return the paths of all files of a GGUF, itself first; they need not exist.

    Raises like `part_names`.
    """
    names = part_names(gguf.name, gguf)
    return tuple(gguf.with_name(name) for name in names) if len(names) > 1 else (gguf,)


def lasting_path(gguf: Path) -> Path:
    """Return the absolute path of a GGUF; links are resolved, except for a part's own name, beside which the
    others lie."""
    # Path.resolve() raises RuntimeError for links that lead to each other before Python 3.13.
    if PartName.parse(gguf.name) is None:
        return Path(os.path.realpath(gguf))
    return Path(os.path.realpath(gguf.parent)) / gguf.name


def first_part(name: str) -> str:
    """Return the name or path of the first part; that of a file that is no part, unchanged."""
    part = PartName.parse(name)
    return name if part is None else part.numbered(1)


def stem_of(name: str) -> str:
    """Return a GGUF's name without the suffix and without the numbers of a part."""
    part = PartName.parse(name)
    return name.removesuffix(SUFFIX) if part is None else part.stem


def require_parts(gguf: Path) -> tuple[Path, ...]:
    """Return the paths of all files of a GGUF.

    Raises:
        GGUFError: parts are missing; or as `part_names`.
    """
    paths = part_paths(gguf)
    if len(paths) == 1 or not gguf.is_file():
        return paths
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        verb = "are" if missing[1:] else "is"
        raise GGUFError(
            f"{gguf}: {named(missing, MOST_MISSING)} {verb} missing beside it; download all "
            f"{len(paths)} parts into one folder"
        )
    return paths
