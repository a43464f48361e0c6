"""What the fields of a manifest are made of: their types and bounds, and the base of all its parts."""

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
