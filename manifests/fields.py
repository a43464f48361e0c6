"""What the fields of a manifest are made of: their types and bounds, and the base of all its parts."""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

InsidePath = Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)*$", max_length=255)]
"""A path below the artifact's folder, parts joined by `/`."""

MAX_BLOCK = 64
"""Rows of the widest decoding pass that is built."""

MOST_ROWS = 1024
"""No artifact has passes as wide; the runtime makes a pass's rows before any shard sees them."""

BASE_ALIGNMENT = 64
"""A region's first slot is a multiple of this: at finer bases kernels add up slots in another order."""

MOST_SLOTS = 1 << 24
"""Slots of all sequences together: far beyond any model's context; a pass has masks over all of them."""

MOST_LAYERS, WIDEST, MOST_TOKENS = 1 << 12, 1 << 20, 1 << 22
"""Layers, channels and tokens beyond any model's; a sparse file can claim any size and hold none of it."""

LARGEST_FACTOR = 65504.0
"""fp16's largest number."""

LARGEST_FREQUENCY = 1000.0
"""Radians that a pair turns from one token to the next; 1 where a base is above 1 and no factor below."""

LARGEST_INTEGER = (1 << 64) - 1
"""The largest that a GGUF can hold."""

Name = Annotated[str, Field(min_length=1, max_length=255)]
Count = Annotated[int, Field(gt=0, le=LARGEST_INTEGER)]
Index = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
Slots = Annotated[int, Field(gt=0, le=MOST_SLOTS)]
Channels = Annotated[int, Field(gt=0, le=WIDEST)]
Factor = Annotated[float, Field(ge=-LARGEST_FACTOR, le=LARGEST_FACTOR)]
Frequency = Annotated[float, Field(ge=0, le=LARGEST_FREQUENCY)]


class Record(BaseModel):
    """Base of all manifest parts: immutable, unknown fields refused, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Target(StrEnum):
    """What the artifact was built for; it decides defaults, never the numbers."""

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


class StoredTensor(Record):
    """One projection of a shard: where it came from, how it is stored, and what storing it added.

    It holds `rows` rows of the GGUF's `tensor` from `first_row` on. Where `rope_permuted`, each head's
    rotary rows 0, 1, 2, 3 ... stand as 0, 2 ... 1, 3 ... The errors are those of the stored numbers
    against the GGUF's, both in full precision: `relative_error` is the root of the summed squared errors
    over the root of the summed squares, `max_error` the largest error of one number.
    """

    projection: Name = Field(description="the name of the convolution in the shard")
    tensor: Name
    first_row: Index
    rows: Count
    columns: Count
    rope_permuted: bool
    source_type: str = Field(description="the GGUF's own type of the tensor, such as Q8_0")
    weights: WeightFormat
    fallback: str | None = Field(description="why it is not stored as was asked; null where it is")
    lossless: bool = Field(description="whether the GGUF's own integers and scales, or numbers, are kept")
    bytes: Count
    squares: float = Field(ge=0, description="the sum of the GGUF's numbers squared")
    squared_error: float = Field(ge=0, description="the sum of the errors squared")
    max_error: float = Field(ge=0)

    @property
    def relative_error(self) -> float:
        """What storing added, relative to the size of the numbers."""
        return relative_error((self,))


def relative_error(tensors: Iterable[StoredTensor]) -> float:
    """What storing several tensors added, relative to the size of all their numbers."""
    stored = tuple(tensors)
    squares = math.fsum(tensor.squares for tensor in stored)
    return math.sqrt(math.fsum(tensor.squared_error for tensor in stored) / squares) if squares else 0.0


def formats_of(tensors: Iterable[StoredTensor]) -> tuple[WeightFormat, ...]:
    """The weight formats that some tensors use, most precise first."""
    used = {tensor.weights for tensor in tensors}
    return tuple(weight_format for weight_format in WeightFormat if weight_format in used)
