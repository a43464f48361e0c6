"""The models that a daemon serves: their names, and the sources of the models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from anespec.presets import NO_PRESET, Preset
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.models import ServingModel
from anespec.serving.file_marks import FileMarks

Names = Mapping[str, "ModelSource"]


@dataclass(frozen=True)
class ModelSource:
    """An artifact, a GGUF or a name of either, as a person gave it, and how it is loaded.

    `preset` says how it answers where a request does not.
    """

    path: Path
    loading: LoadOptions
    preset: Preset = NO_PRESET


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
