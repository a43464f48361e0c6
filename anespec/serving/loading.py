"""How a daemon's models come into memory: the protocol of a loader, and the files that a model maps."""

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


@dataclass(frozen=True)
class Found:
    """The artifact that a source leads to: what it is, its files, and the bytes of memory that it takes.

    `sequences` are those that are to run at a time, None for all that it has.
    """

    path: Path
    fingerprint: str
    memory: int
    files: FileMarks
    sequences: int | None = None


class ResidentModel(ServingModel, Protocol):
    """A model that can be taken out of memory."""

    def stop(self) -> None:
        """End all that runs."""
        ...

    def close(self) -> None:
        """Stop it and give its memory back."""
        ...


class Loader(Protocol):
    """Finds and loads models; called in threads, also in several at once."""

    def find(self, source: ModelSource) -> Found:
        """Return the artifact of a source; a GGUF is converted first. Raises AnespecError."""
        ...

    def load(self, source: ModelSource, found: Found) -> ResidentModel:
        """Bring it into memory. Raises AnespecError."""
        ...
