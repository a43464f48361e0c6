"""Record the names of the models that used a vocabulary in its database, for display."""

from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from anespec.manifests.schema import Name, Record
from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.system.errors import StorageError

MAX_MODELS = 16


class Model(Record):
    """The name and the path of a model that used a vocabulary."""

    name: Name
    path: str = Field(pattern=r"^[^\x00]+$")

    @classmethod
    def of(cls, name: str, path: Path) -> Self | None:
        """Return the model of this name and path; None if one of them is invalid."""
        try:
            return cls(name=name, path=str(path.absolute()))
        except ValidationError:
            return None


class Models(Record):
    """The models that used one vocabulary, the latest first."""

    models: tuple[Model, ...] = ()


def note_model(database: MemoryDatabase, model: Model | None) -> None:
    """Record that a model uses a vocabulary, unless the database cannot be written."""
    known = noted_models(database)
    if model is None or known[:1] == (model,):
        return
    latest = (model, *(each for each in known if each != model))[:MAX_MODELS]
    with suppress(StorageError):
        database.models = Models(models=latest).model_dump_json()


def noted_models(database: MemoryDatabase) -> tuple[Model, ...]:
    """Return the models that used a vocabulary, the latest first; none if the record is invalid."""
    try:
        return Models.model_validate_json(database.models).models
    except ValidationError:
        return ()
