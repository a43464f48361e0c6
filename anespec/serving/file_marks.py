"""Detect writes to the files of a model in memory since it was loaded.

A model maps its files. A deleted or replaced file stays unchanged in the mapping, so the model continues to
work. A file that is written to, or truncated, changes the mapped weights.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class FileMark:
    """A file as it was: the same inode with another size or time was written into."""

    path: Path
    device: int
    inode: int
    bytes: int
    written_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """As it is now; raises OSError."""
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    @property
    def was_written_into(self) -> bool:
        """Whether the same file has other content now."""
        try:
            now = FileMark.of(self.path)
        except OSError:
            return False
        return (now.device, now.inode) == (self.device, self.inode) and now != self


@dataclass(frozen=True)
class FileMarks:
    """The files of a model."""

    marks: tuple[FileMark, ...] = ()

    @classmethod
    def below(cls, paths: Iterable[Path]) -> Self:
        """All files at or below the paths; raises OSError."""
        marks: list[FileMark] = []
        for path in paths:
            if path.is_dir():
                files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
            else:
                files = [path]
            marks += map(FileMark.of, files)
        return cls(tuple(marks))

    @property
    def written_into(self) -> Path | None:
        """The first file that holds something else than it did; None where there is none."""
        return next((mark.path for mark in self.marks if mark.was_written_into), None)
