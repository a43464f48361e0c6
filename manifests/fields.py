"""The types and limits of a manifest's fields, and the base class of its parts."""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

InsidePath = Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)*$", max_length=255)]
"""A path relative to the artifact's folder, with `/` as separator."""

MAX_BLOCK = 64
"""The largest block that `convert` accepts."""

MOST_ROWS = 1024
"""The largest T of a pass; the runtime allocates a pass's rows before a shard could refuse them."""

BASE_ALIGNMENT = 64
"""A region's first slot is a multiple of this; else kernels would add up its slots in another order."""

MOST_SLOTS = 1 << 24
"""The most slots of all sequences together, far beyond any model's context; masks have an entry for each."""

MOST_LAYERS, WIDEST, MOST_TOKENS = 1 << 12, 1 << 20, 1 << 22
"""The most layers, channels and tokens, more than any model has; a sparse file could claim any size."""

LARGEST_FACTOR = 65504.0
"""The largest number in fp16."""

LARGEST_FREQUENCY = 1000.0
"""The largest rotation of a pair in radians per token. With a base and factors above 1 it is at most 1."""

LARGEST_INTEGER = (1 << 64) - 1
"""The largest integer that a GGUF can hold."""

Name = Annotated[str, Field(min_length=1, max_length=255)]
Count = Annotated[int, Field(gt=0, le=LARGEST_INTEGER)]
Index = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Slots = Annotated[int, Field(gt=0, le=MOST_SLOTS)]
Channels = Annotated[int, Field(gt=0, le=WIDEST)]
Factor = Annotated[float, Field(ge=-LARGEST_FACTOR, le=LARGEST_FACTOR)]
Frequency = Annotated[float, Field(ge=0, le=LARGEST_FREQUENCY)]


class Record(BaseModel):
    """The base class of all parts of a manifest: immutable, without unknown fields, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Target(StrEnum):
    """The device for which an artifact is built. It determines defaults of the conversion."""

    MAC = "mac"
    IPHONE = "iphone"
    CPU = "cpu"


class WeightFormat(StrEnum):
    """How projection weights are stored in the shards (docs/weights.md), most precise first."""

    FP16 = "fp16"
    INT8_BLOCK32 = "int8-block32"
    LUT8 = "lut8"
    INT8_CHANNEL = "int8-channel"
    LUT6 = "lut6"
    INT4_BLOCK32 = "int4-block32"
    LUT4 = "lut4"


PALETTES = frozenset({WeightFormat.LUT8, WeightFormat.LUT6, WeightFormat.LUT4})
"""The formats of indices into a palette of numbers."""


class RopeRows(Record):
    """Which rows of a projection rotate: of the `head` rows of each head, those from `first` on."""

    head: Count
    first: Index


class StoredTensor(Record):
    """A projection of a shard: its source, how it is stored, and the error that storing added.

    It has `rows` rows of the GGUF's `tensor` from `first_row` on. If `rope_permuted`, each head's rotary rows
    0, 1, 2, 3 ... are in the order 0, 2 ... 1, 3 ... Those are its first rows, unless `rope_rows` names
    others. The errors are differences between the stored numbers
    and the GGUF's, both in full precision: `relative_error` is the root of the summed squared errors over the
    root of the summed squares, `max_error` the largest error of a number.
    """

    projection: Name = Field(description="the name of the convolution in the shard")
    tensor: Name
    first_row: Index
    rows: Count
    columns: Count
    rope_permuted: bool
    rope_rows: RopeRows | None = Field(
        default=None, exclude_if=lambda rows: rows is None, description="only with latent attention"
    )
    source_type: str = Field(description="the GGUF's own type of the tensor, such as Q8_0")
    weights: WeightFormat
    fallback: str | None = Field(description="why the format is not the requested one; null if it is")
    lossless: bool = Field(description="whether the GGUF's own integers and scales, or numbers, are kept")
    bytes: Count
    squares: float = Field(ge=0, description="the sum of the GGUF's numbers squared")
    squared_error: float = Field(ge=0, description="the sum of the errors squared")
    max_error: float = Field(ge=0)

    @property
    def relative_error(self) -> float:
        """The error that storing added, relative to the size of the numbers."""
        return relative_error((self,))


def relative_error(tensors: Iterable[StoredTensor]) -> float:
    """Return the error that storing several tensors added, relative to the size of all their numbers."""
    stored = tuple(tensors)
    squares = math.fsum(tensor.squares for tensor in stored)
    return math.sqrt(math.fsum(tensor.squared_error for tensor in stored) / squares) if squares else 0.0


def formats_of(tensors: Iterable[StoredTensor]) -> tuple[WeightFormat, ...]:
    """Return the weight formats of the tensors, most precise first."""
    used = {tensor.weights for tensor in tensors}
    return tuple(weight_format for weight_format in WeightFormat if weight_format in used)
