"""The protocol of a weight format: the constants for a matrix, and how its rows are stored in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from anespec.gguf.element_types import ElementType
from anespec.manifests.schema import RopeRows, WeightFormat
from anespec.system.errors import UnsupportedModelError

FP16_MAX = float(np.finfo(np.float16).max)
FP16_TINY = np.float16(np.finfo(np.float16).smallest_subnormal)
FP16_NORMAL = np.float16(np.finfo(np.float16).smallest_normal)
"""2^-14, about 6.1e-5; a Neural Engine may flush smaller numbers to zero."""
BLOCK = 32
"""The number of weights along a row that share a scale, as in GGML's block formats."""

SUMMED_COLUMNS = 8192

Floats = NDArray[np.float32]
Parts = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Part:
    """A constant of a stored matrix; `name` is the input of the MIL operation that takes it."""

    name: str
    shape: tuple[int, ...]
    element: ElementType

    @property
    def nbytes(self) -> int:
        """The bytes in the weight file."""
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
        """The GGML type in the GGUF."""
        ...

    @property
    def block_kind(self) -> GGMLQuantizationType | None:
        """The GGML type of the blocks; None if the rows are not the blocks' own numbers."""
        ...

    @property
    def order(self) -> NDArray[np.intp]:
        """The indices of the matrix's rows in the tensor."""
        ...

    @property
    def rope_rows(self) -> RopeRows | None:
        """Which rows of a head rotate, if these are not the first ones of the model's heads."""
        ...

    def rows(self, wanted: slice) -> Floats:
        """Return rows as float32 (rows, in); the caller may overwrite the array."""
        ...

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        """Return rows as the GGUF stores them, (rows, bytes of a row)."""
        ...

    def forget(self) -> None:
        """Release its pages from memory; called when it is not read again soon."""
        ...


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a matrix, float32 (rows, in).

    `extremes` (rows,) are the numbers of largest magnitude in each row. `blocks` returns the rows as the GGUF
    stores them.
    """

    values: Floats
    extremes: Floats
    blocks: Callable[[], NDArray[np.uint8]]


class Encoding(Protocol):
    """A way to store a matrix. A weight format has one or several, for tensors of different types."""

    @property
    def weight_format(self) -> WeightFormat:
        """The weight format to which the encoding belongs."""
        ...

    @property
    def operation(self) -> str | None:
        """The MIL operation that computes the weight from the parts; None if the only part is the weight."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the GGUF's own integers and scales are kept."""
        ...

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the constants for an (out, in) matrix, in the order in which they are written."""
        ...

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Return the number of rows that must be stored together."""
        ...

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows in the arrays `into`; return the numbers that are then stored, float32.

        Each array in `into` is the section of a part for these rows, without axes of length one.
        """
        ...


def stored_bytes(encoding: Encoding, shape: tuple[int, int]) -> int:
    """Return the bytes of a stored (out, in) matrix, including scales and palettes."""
    return sum(part.nbytes for part in encoding.parts(shape))


def extremes_of(values: Floats) -> Floats:
    """Return the number of largest magnitude in each row."""
    highest, lowest = values.max(axis=1), values.min(axis=1)
    extremes: Floats = np.where(highest >= -lowest, highest, lowest)
    return extremes


def squares_of_rows(values: Floats) -> Floats:
    """Return each row's sum of squares, in an order that does not depend on the number of cores.

    OpenBLAS uses several threads for more than 10,000 numbers, so rows are summed in shorter parts.
    """
    columns = range(0, values.shape[1], SUMMED_COLUMNS)
    parts = (values[:, first : first + SUMMED_COLUMNS] for first in columns)
    squares: Floats = np.add.reduce([np.vecdot(part, part) for part in parts])
    return squares


def without_subnormals(values: Floats) -> Floats:
    """Return the values with those of magnitude below FP16_NORMAL rounded to zero or +-FP16_NORMAL.

    No value changes by more than half of FP16_NORMAL, about 3.1e-5.
    """
    least = np.float32(FP16_NORMAL)
    rounded: Floats = np.where(np.abs(values) < least, np.rint(values / least) * least, values)
    return rounded


def require_fp16_range(values: Floats, name: str) -> None:
    """Raise UnsupportedModelError if a value is beyond fp16's range."""
    if values.size and float(np.abs(values).max()) > FP16_MAX:
        raise UnsupportedModelError(
            f"tensor {name!r} has values beyond the range of fp16, in which shards compute; "
            "the file is corrupt, or the model cannot be converted"
        )


def to_fp16(values: Floats, name: str) -> NDArray[np.float16]:
    """Round to fp16.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    require_fp16_range(values, name)
    return values.astype(np.float16)
