"""Choose the encoding of a weight format for a given tensor: the only module that knows all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from gguf.constants import GGMLQuantizationType

from anespec.convert.weights.encoding import (
    BLOCK,
    FP16_NORMAL,
    Encoding,
    Floats,
    Part,
    Parts,
    Piece,
    without_subnormals,
)
from anespec.convert.weights.linear import (
    INT4_BLOCKS,
    INT8_BLOCKS,
    Int8Channel,
    RepackedQ4,
    RepackedQ4K,
    RepackedQ4WithMinimum,
    RepackedQ8,
)
from anespec.convert.weights.palettes import LUT4, LUT6, LUT8
from anespec.gguf.element_types import ElementType
from anespec.manifests.schema import Target, WeightFormat


@dataclass(frozen=True)
class Dense:
    """fp16 (out, in, 1, 1), rounded to nearest; where `subnormals` would be flushed, to one that is none."""

    subnormals: bool = True
    weight_format = WeightFormat.FP16
    operation = None
    lossless = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """The weight itself."""
        return (Part("weight", (*shape, 1, 1), ElementType.FP16),)

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Every row stands alone."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        into["weight"][:] = piece.values if self.subnormals else without_subnormals(piece.values)
        return into["weight"].astype(np.float32)


ENCODINGS: Mapping[WeightFormat, Encoding] = MappingProxyType(
    {
        WeightFormat.FP16: Dense(),
        WeightFormat.INT8_BLOCK32: INT8_BLOCKS,
        WeightFormat.LUT8: LUT8,
        WeightFormat.INT8_CHANNEL: Int8Channel(),
        WeightFormat.LUT6: LUT6,
        WeightFormat.INT4_BLOCK32: INT4_BLOCKS,
        WeightFormat.LUT4: LUT4,
    }
)
"""The encoding of each format for any tensor."""

ENGINE_ENCODINGS: Mapping[WeightFormat, Encoding] = MappingProxyType(
    {
        WeightFormat.FP16: Dense(subnormals=False),
        WeightFormat.LUT8: replace(LUT8, subnormals=False),
        WeightFormat.INT8_CHANNEL: Int8Channel(FP16_NORMAL),
        WeightFormat.LUT6: replace(LUT6, subnormals=False),
        WeightFormat.LUT4: replace(LUT4, subnormals=False),
    }
)
"""The same for a Neural Engine, which may flush subnormal numbers to zero: nothing that is stored is one."""

REPACKED: Mapping[tuple[WeightFormat, GGMLQuantizationType], Encoding] = MappingProxyType(
    {
        (WeightFormat.INT8_BLOCK32, GGMLQuantizationType.Q8_0): RepackedQ8(),
        (WeightFormat.INT4_BLOCK32, GGMLQuantizationType.Q4_0): RepackedQ4(),
        (WeightFormat.INT4_BLOCK32, GGMLQuantizationType.Q4_1): RepackedQ4WithMinimum(),
        (WeightFormat.INT4_BLOCK32, GGMLQuantizationType.Q4_K): RepackedQ4K(),
    }
)
"""The encodings that take over the GGUF's own integers."""

BLOCKWISE = (WeightFormat.INT8_BLOCK32, WeightFormat.INT4_BLOCK32)


@dataclass(frozen=True)
class Choice:
    """The encoding of a tensor; `fallback` is the reason if it is not the requested one, else None."""

    encoding: Encoding
    fallback: str | None = None


def choose(
    asked: WeightFormat, width: int, kind: GGMLQuantizationType, target: Target = Target.CPU
) -> Choice:
    """How a matrix with rows of `width` numbers, a tensor of type `kind`, is stored where `asked` is wanted.

    The one case that does not fit: rows that are no whole number of blocks become int8-channel. What
    `target` does not take (see targets.fits) is stored as for processors, so that it can be compared.
    """
    if target is not Target.CPU and asked in ENGINE_ENCODINGS:
        return Choice(ENGINE_ENCODINGS[asked])
    if asked in BLOCKWISE and width % BLOCK:
        reason = f"rows of {width} are no whole number of blocks of {BLOCK}"
        return Choice(ENCODINGS[WeightFormat.INT8_CHANNEL], reason)
    return Choice(REPACKED.get((asked, kind), ENCODINGS[asked]))
