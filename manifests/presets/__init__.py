"""Presets: topologies that were measured, each a JSON file with its provenance.

A preset is a measurement of one model with one weight format on one kind of machine, and is used
automatically only for that model. The file's name is the preset's name.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.schema import (
    AttentionShape,
    Hyperparameters,
    KVForm,
    Record,
    Shapes,
    Target,
    WeightFormat,
)
from anespec.system.errors import RequestError
from anespec.system.grades import Grade

NO_PRESET = "none"
"""The value that disables presets."""


class MatchedModel(Record):
    """The sizes that identify a model; the name in a GGUF is not trusted."""

    architecture: str
    d: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    ff: int = Field(ge=0)
    vocabulary: int = Field(gt=0)

    @classmethod
    def of(cls, architecture: str, sizes: Hyperparameters) -> "MatchedModel":
        """Return the sizes that are compared."""
        compared = set(cls.model_fields) - {"architecture"}
        return cls(architecture=architecture, **sizes.model_dump(include=compared))

    def __str__(self) -> str:
        return (
            f"{self.architecture} with d {self.d}, {self.layers} layers, {self.heads}/{self.kv_heads} heads "
            f"of {self.head_dim}, ff {self.ff}, vocabulary {self.vocabulary}"
        )


class GraphForm(Record):
    """The choices that determine the operations of a graph."""

    attention: AttentionShape
    kv_form: KVForm
    shapes: Shapes
    layout: ChannelLayout = DECLARED


class Provenance(Record):
    """The origin of a preset. Results of `anespec tune` on one machine have the grade OURS."""

    source: str
    grade: Grade
    measured: str
    machine: str


class Preset(Record):
    """A topology for one model, measured with `block` and `context`.

    `attention`, `kv_form`, `shapes` and `layout` describe the graph that was measured; the preset is also
    used for other graphs. A `head_shards` of None means that the source does not give the number.
    """

    schema_version: Literal[1] = 1
    name: str = Field(pattern=r"^[a-z0-9.-]+$")
    title: str
    model: MatchedModel
    target: Target
    weights: WeightFormat
    topology: tuple[int, ...] = Field(min_length=1)
    head_shards: int | None = Field(default=None, gt=0)
    block: int = Field(gt=0)
    context: int = Field(gt=0)
    attention: AttentionShape
    kv_form: KVForm
    shapes: Shapes
    layout: ChannelLayout = DECLARED
    provenance: Provenance

    @model_validator(mode="after")
    def _adds_up(self) -> "Preset":
        if min(self.topology) < 1 or sum(self.topology) != self.model.layers:
            raise ValueError(f"the topology {self.topology} does not add up to {self.model.layers} layers")
        return self

    def other_form(self, graph: "GraphForm") -> tuple[str, ...]:
        """Return a clause for each difference between the measured graph and `graph`."""
        return tuple(
            f"{name.replace('_', ' ')} {mine} there, {yours} here"
            for name, yours in graph
            if (mine := getattr(self, name)) != yours
        )

    def differences(self, model: MatchedModel, target: Target, weights: str) -> tuple[str, ...]:
        """Return a clause for each difference from the measured conversion; empty if the preset matches."""
        compared = {
            name: (getattr(self.model, name), getattr(model, name)) for name in MatchedModel.model_fields
        }
        compared |= {"target": (self.target, target), "weights": (self.weights, weights)}
        return tuple(
            f"{name} {mine} there, {yours} here" for name, (mine, yours) in compared.items() if mine != yours
        )


def preset_names() -> tuple[str, ...]:
    """Return the names of the installed presets, without reading them."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _folder_files()))


@cache
def presets() -> Mapping[str, Preset]:
    """Return the installed presets by name.

    Raises:
        RequestError: a file is not a preset, so the installation is damaged.
    """
    found: dict[str, Preset] = {}
    for file in sorted(_folder_files(), key=lambda file: file.name):
        try:
            preset = Preset.model_validate_json(file.read_text("utf-8"))
        except ValidationError as error:
            raise RequestError(
                f"the preset {file.name} is damaged ({error.errors()[0]['msg']}); install anespec again"
            ) from None
        found[preset.name] = preset
    return MappingProxyType(found)


def find_preset(name: str) -> Preset:
    """Return the preset with this name.

    Raises:
        RequestError: there is no such preset.
    """
    try:
        return presets()[name]
    except KeyError:
        raise RequestError(f"--preset {name!r} is not one of {', '.join((*presets(), NO_PRESET))}") from None


def matching_preset(model: MatchedModel, target: Target, weights: str) -> Preset | None:
    """Return the preset that was measured for this model, target and weight format, if there is one."""
    return next((p for p in presets().values() if not p.differences(model, target, weights)), None)


def _folder_files() -> list[Traversable]:
    return [file for file in files(__name__).iterdir() if file.name.endswith(".json")]
