"""The interface for loading a daemon's models, and a check that their files have not changed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from anespec.runtime.server.models import ServingModel
from anespec.serving.sources import ModelSource

# A model maps its files. A file that is deleted or replaced stays unchanged in the mapping, so the model
# continues to work. A file that is written to, or truncated, changes the weights in the mapping.


@dataclass(frozen=True)
class FileMark:
    """A file's inode, size and time. The same inode with another size or time means that it was written
    to."""

    path: Path
    device: int
    inode: int
    bytes: int
    written_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the mark of a file's current state; raises OSError."""
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    @property
    def was_written_into(self) -> bool:
        """Return whether the file was written to since then. A replaced file was not."""
        try:
            now = FileMark.of(self.path)
        except OSError:
            return False
        return (now.device, now.inode) == (self.device, self.inode) and now != self


@dataclass(frozen=True)
class FileMarks:
    """The marks of all files of a model."""

    marks: tuple[FileMark, ...] = ()

    @classmethod
    def below(cls, paths: Iterable[Path]) -> Self:
        """Mark the files at the paths and below them; raises OSError."""
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
        """Return the first file that was written to; None if there is none."""
        return next((mark.path for mark in self.marks if mark.was_written_into), None)


@dataclass(frozen=True)
class Found:
    """The artifact of a source: its facts, its files, and the bytes of memory that the model takes.

    `sequences` is how many sequences may run at a time; None for all that the artifact has. `draft` is the
    artifact of a second model that drafts; None if there is none.
    """

    path: Path
    fingerprint: str
    memory: int
    files: FileMarks
    sequences: int | None = None
    draft: Path | None = None


class ResidentModel(ServingModel, Protocol):
    """A model that can be unloaded."""

    def stop(self) -> None:
        """End all requests."""
        ...

    def close(self) -> None:
        """Stop the model and release its memory."""
        ...


class Loader(Protocol):
    """An object that finds and loads models. Its methods are called in threads, possibly several at once."""

    def find(self, source: ModelSource) -> Found:
        """Return the artifact of a source; a GGUF is converted first. Raises AnespecError."""
        ...

    def load(self, source: ModelSource, found: Found) -> ResidentModel:
        """Load the model into memory. Raises AnespecError."""
        ...
