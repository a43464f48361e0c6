"""The options for the models of a daemon."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from anespec.manifests.options import Flag, Options, read_size
from anespec.runtime.options import LoadOptions


class PoolOptions(Options):
    """The models that a daemon serves, and how many stay in memory."""

    models: Annotated[tuple[str, ...], Flag(names=("--model",), metavar="NAME=MODEL", multiple=True)] = Field(
        default=(),
        description="Serve another model under this name, loaded at its first request; may be given several "
        "times.",
    )
    memory: Annotated[
        int | None, BeforeValidator(read_size), Flag(metavar="BYTES", default="0.8 of the machine's")
    ] = Field(
        default=None,
        ge=1,
        description="The memory of all loaded models together; the least recently used are unloaded.",
    )
    preload: bool = Field(default=False, description="Load all models at the start, not only the first one.")


class ModelEntry(LoadOptions):
    """A model in a file of options: where it is, how this one is loaded, and the preset of its answers."""

    path: Path
    preset: str | None = None
