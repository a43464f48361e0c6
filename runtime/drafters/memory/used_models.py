"""The names of the models that have used a vocabulary, noted in its folder for display."""

import contextlib
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from anespec.manifests.schema import Name, Record
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

MODELS_NAME = "models.json"
MOST_MODELS = 16
LARGEST_MODELS = 1 << 16
"""Bytes of the file."""


class Model(Record):
    """A model that used a vocabulary: what it is called, and where it is."""

    name: Name
    path: str = Field(pattern=r"^[^\x00]+$")

    @classmethod
    def of(cls, name: str, path: Path) -> Self | None:
        """The model of this name there; None where it has none, or its path is no text."""
        try:
            return cls(name=name, path=str(path.absolute()))
        except ValidationError:
            return None


class Models(Record):
    """Those that used one vocabulary, the latest first."""

    models: tuple[Model, ...] = ()


def note_model(folder: Folder, model: Model | None) -> None:
    """Remember in a vocabulary's folder that a model uses it; where that cannot be written it is left."""
    if model is None:
        return
    known = read_models(folder)
    if known[:1] == (model,):
        return
    latest = (model, *(each for each in known if each != model))[:MOST_MODELS]
    with contextlib.suppress(OSError, StorageError):
        text = Models(models=latest).model_dump_json().encode()
        folder.replace_parts(MODELS_NAME, [text], durable=False, mode=0o600)


def read_models(folder: Folder) -> tuple[Model, ...]:
    """Those that are noted in a vocabulary's folder, the latest first; none where they cannot be read."""
    try:
        return Models.model_validate_json(folder.read(MODELS_NAME, LARGEST_MODELS)).models
    except (OSError, StorageError, ValidationError):
        return ()
