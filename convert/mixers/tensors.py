"""Name the tensors of layers, and what the shapes of a mixer's tensors follow from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from anespec.convert.families.family import Family
from anespec.gguf.mapped_file import TensorInfo

Expected = tuple[str, tuple[tuple[int, ...], bool]]
"""A tensor's name, its shape, and whether it may be missing."""


@dataclass(frozen=True)
class ModelTensors:
    """What the tensors of a mixer follow from, beside its own sizes: the family, and the file's tensors."""

    family: Family
    hidden_size: int
    infos: Mapping[str, TensorInfo]


class Indexed(Protocol):
    """A layer, or a part of one."""

    @property
    def index(self) -> int:
        """The number of the layer."""
        ...


def tensor_name(part: Indexed, role: str) -> str:
    """Return the GGUF name of a layer's tensor with a role such as `attn_q`."""
    return f"blk.{part.index}.{role}.weight"


def part_name(part: Indexed, name: str) -> str:
    """Return the whole GGUF name of a layer's tensor that has no suffix `.weight`."""
    return f"blk.{part.index}.{name}"


def bias_name(weight: str) -> str:
    """Return the GGUF name of the bias that belongs to a weight."""
    return weight.removesuffix("weight") + "bias"
