"""The protocol of a weight format: the constants of a matrix, and how rows of numbers are stored in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from anespec.gguf.element_types import ElementType
from anespec.manifests.schema import WeightFormat
from anespec.system.errors import UnsupportedModelError

FP16_MAX = float(np.finfo(np.float16).max)
FP16_TINY = np.float16(np.finfo(np.float16).smallest_subnormal)
FP16_NORMAL = np.float16(np.finfo(np.float16).smallest_normal)
"""2^-14, about 6.1e-5: a Neural Engine may take what is smaller for zero."""
BLOCK = 32
"""Weights along a row that share a scale, as in GGML's block formats."""

COLUMNS_AT_ONCE = 8192

Floats = NDArray[np.float32]
Parts = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Part:
    """One constant of a stored matrix; `name` is the input of the MIL operation that takes it."""

    name: str
    shape: tuple[int, ...]
    element: ElementType

    @property
    def nbytes(self) -> int:
        """Bytes in the weight file."""
        return self.element.nbytes(self.shape)


class SourceMatrix(Protocol):
    """A matrix of the GGUF, or some of its rows, in any order."""

    @property
    def name(self) -> str:
        """The tensor's name in the GGUF."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        ...

    @property
    def kind(self) -> GGMLQuantizationType:
        """The GGUF's type."""
        ...

    @property
    def order(self) -> NDArray[np.intp]:
        """The rows of the tensor."""
        ...

    def rows(self, wanted: slice) -> Floats:
        """Rows as float32 (rows, in), an array that may be overwritten."""
        ...

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        """Rows as the GGUF stores them, (rows, bytes of a row)."""
        ...

    def forget(self) -> None:
        """Said when it is not read again soon."""
        ...


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a matrix: float32 (rows, in), and how to get them as the GGUF stores them.

    `extremes` (rows,) are the rows' numbers of largest magnitude.
    """

    values: Floats
    extremes: Floats
    blocks: Callable[[], NDArray[np.uint8]]


class Encoding(Protocol):
    """One way to store a matrix: what a weight format makes of a tensor of a certain type and shape."""

    @property
    def weight_format(self) -> WeightFormat:
        """The format that it belongs to."""
        ...

    @property
    def operation(self) -> str | None:
        """The MIL operation that makes the weight from the parts; None where the one part is the weight."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the GGUF's own integers and scales are kept."""
        ...

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """The constants of an (out, in) matrix, in the order in which they are written."""
        ...

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Rows that must be stored together."""
        ...

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Fill the parts' arrays of some rows; returns the numbers that they now stand for.

        Every array in `into` is the part's share of those rows, its axes of length one dropped.
        """
        ...


def stored_bytes(encoding: Encoding, shape: tuple[int, int]) -> int:
    """Bytes that an (out, in) matrix takes, scales and palettes included."""
    return sum(part.nbytes for part in encoding.parts(shape))


def extremes_of(values: Floats) -> Floats:
    """Each row's number of largest magnitude."""
    highest, lowest = values.max(axis=1), values.min(axis=1)
    extremes: Floats = np.where(highest >= -lowest, highest, lowest)
    return extremes


def squares_of_rows(values: Floats) -> Floats:
    """Each row's sum of squares, added up in an order that does not depend on the number of cores.

    OpenBLAS adds up more than 10,000 numbers with several threads.
    """
    columns = range(0, values.shape[1], COLUMNS_AT_ONCE)
    parts = (values[:, first : first + COLUMNS_AT_ONCE] for first in columns)
    squares: Floats = np.add.reduce([np.vecdot(part, part) for part in parts])
    return squares


def without_subnormals(values: Floats) -> Floats:
    """The values, those below FP16_NORMAL brought to the nearest of it, its negative and zero.

    No value moves by more than half of FP16_NORMAL, about 3.1e-5.
    """
    least = np.float32(FP16_NORMAL)
    rounded: Floats = np.where(np.abs(values) < least, np.rint(values / least) * least, values)
    return rounded


def require_fp16_range(values: Floats, name: str) -> None:
    """Raise UnsupportedModelError where a value is beyond fp16's range."""
    if values.size and float(np.abs(values).max()) > FP16_MAX:
        raise UnsupportedModelError(
            f"tensor {name!r} has values beyond fp16's range, in which shards compute; "
            "the file is corrupt, or the model does not convert"
        )


def to_fp16(values: Floats, name: str) -> NDArray[np.float16]:
    """Round to fp16.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    require_fp16_range(values, name)
    return values.astype(np.float16)
