"""Define the projections of a source model, whose rows are read from the GGUF when needed."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import RopeRows
from anespec.system.errors import GGUFError

OWN_SCALES = (".ffn_gate_inp.", ".ffn_down_exps.")
"""Weights whose factors belong to the mixture if the router has some."""


class MatrixSource(Protocol):
    """What projections are read from."""

    @property
    def file(self) -> GGUFFile:
        """The open file."""
        ...

    def finite_rows(self, name: str, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return rows of a tensor; raise GGUFError if a value is not finite."""
        ...


# A tensor of three axes holds a projection for each expert or head; each has a role with its number.


def numbered_role(kind: str, number: int) -> str:
    """Return the role of one of several projections in a tensor, such as `ffn_up_exps.3`."""
    return f"{kind}.{number}"


def kind_and_number(role: str) -> tuple[str, int | None]:
    """Return the kind of a projection, and its number if it is one of several in a tensor."""
    kind, _, number = role.rpartition(".")
    return (kind, int(number)) if number.isdecimal() else (role, None)


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading axes of one element, which writers of GGUF add or leave out."""
    first = next((axis for axis, size in enumerate(shape) if size > 1), len(shape))
    return shape[first:]


def neox_order(heads: int, head_rows: int, rotary: range) -> NDArray[np.intp]:
    """Return the order of rows that moves every head's rotating pairs from 2i, 2i + 1 to i, i + half.

    A head has `head_rows` rows, of which `rotary` rotate.
    """
    within = np.arange(head_rows)
    pairs = within[rotary.start : rotary.stop]
    within[rotary.start : rotary.stop] = np.concatenate([pairs[0::2], pairs[1::2]])
    return (np.arange(heads)[:, None] * head_rows + within).reshape(-1)


# NVFP4's blocks hold numbers up to a factor for the whole tensor, or for each expert, which the file has
# beside the weight: llama.cpp multiplies the product with a weight of any type by it. A factor for
# activations (`input_scale`) is only of use to a kernel that computes with activations of 4 bits, so it
# changes nothing here.


def companions(weight: str, kind: str) -> tuple[str, str]:
    """Return the names that factors beside a weight may have; `kind` is `scale` or `input_scale`."""
    return f"{weight.removesuffix('weight')}{kind}", f"{weight}.{kind}"


def weight_scale(file: GGUFFile, weight: str) -> NDArray[np.float32] | None:
    """Return the factors of a weight's rows: one, or one for each expert; None if the file has none.

    Raises:
        GGUFError: there are two tensors of factors.
    """
    layer = weight.rpartition(".ffn_")[0]
    if weight.startswith(OWN_SCALES, len(layer)) and f"{layer}.ffn_gate_inp.scale" in file.tensors:
        # In Gemma 4 these belong to the mixture, whose graph applies them.
        return None
    names = [name for name in companions(weight, "scale") if name in file.tensors]
    if len(names) > 1:
        raise GGUFError(
            f"{file.path}: the tensors {names[0]!r} and {names[1]!r} are both factors of {weight!r}; write "
            "the file again with a current converter"
        )
    return file.rows(names[0]).reshape(-1) if names else None


def scaled_rows(
    file: GGUFFile, name: str, rows: slice | NDArray[np.integer] | None = None
) -> NDArray[np.float32]:
    """Return rows of a weight as GGUFFile.rows, each times its factor if the weight has factors."""
    values, scale = file.rows(name, rows), weight_scale(file, name)
    if scale is None:
        return values
    count = math.prod(file.info(name).shape[:-1])
    places = np.arange(count)[slice(None) if rows is None else rows]
    factors = scale[places // (count // len(scale))]
    with np.errstate(all="ignore"):
        return (values.reshape(len(places), -1) * factors[:, None]).reshape(values.shape)


def block_kind(file: GGUFFile, name: str) -> GGMLQuantizationType | None:
    """Return the type of a weight's blocks; None if it has factors, so that they hold other numbers."""
    return file.info(name).kind if weight_scale(file, name) is None else None


@dataclass(frozen=True)
class TensorRows:
    """The rows of the tensor `name` that hold a projection."""

    name: str
    rows: range


@dataclass(frozen=True)
class Matrix:
    """A projection whose rows are read when needed; `order` has the indices of its rows in the file.

    `rope_rows` says which rows of a head rotate, if these are not the first ones of the model's heads.
    """

    source: "MatrixSource"
    name: str
    order: NDArray[np.intp]
    shape: tuple[int, int]
    rope_rows: RopeRows | None = None

    @property
    def kind(self) -> GGMLQuantizationType:
        """The GGML type in the file."""
        return self.source.file.info(self.name).kind

    @property
    def block_kind(self) -> GGMLQuantizationType | None:
        """The GGML type of the blocks if they hold the rows' numbers; see `block_kind`."""
        return block_kind(self.source.file, self.name)

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        """Return rows as float32 (rows, in); raise GGUFError if a value is not finite."""
        return self.source.finite_rows(self.name, self.order[wanted])

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        """Return rows as the file stores them, (rows, bytes of a row); blocks are along a row."""
        return self.source.file.raw(self.name)[self.order[wanted]]

    def forget(self) -> None:
        """Release the tensor's pages of the mapped file from memory."""
        self.source.file.forget(self.name)
