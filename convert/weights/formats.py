"""Choose the encoding of a weight format for a given tensor. This module lists all encodings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

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
    RepackedMXFP4,
    RepackedQ4,
    RepackedQ4K,
    RepackedQ4WithMinimum,
    RepackedQ8,
)
from anespec.gguf.element_types import ElementType
from anespec.manifests.schema import Target, WeightFormat

# A palette is found by k-means in one dimension. There clusters are ranges of the sorted numbers, so with
# prefix sums a step of Lloyd's algorithm only has to find the borders of the ranges, for any count of numbers
# (S. P. Lloyd, "Least squares quantization in PCM", 1982).

GROUP_ROWS = 16
"""The number of output channels that share a palette.

With rows of 3072 numbers the size of a palette of 64 is then 0.4 % of that of its indices.
"""
STEPS = 10
"""The most steps of Lloyd's algorithm; on trained and random weights 20 more reduce the error by 0.3 %."""
RANGES = 2048
"""The number of ranges with equally many values in which their density is estimated."""

_CODES = np.arange(1 << 16, dtype=np.uint16)
_FINITE = _CODES[np.isfinite(_CODES.view(np.float16))]
_FP16_CODES = _FINITE[np.argsort(_FINITE.view(np.float16), kind="stable")]
_FP16_ASCENDING = _FP16_CODES.view(np.float16).astype(np.float32)
"""All finite fp16 numbers in ascending order; _FP16_CODES has their bits as integers."""

Exact = NDArray[np.float64]


def group_rows(rows: int) -> int:
    """Return how many of a matrix's rows share a palette: the largest divisor up to GROUP_ROWS."""
    return next(size for size in range(min(GROUP_ROWS, rows), 0, -1) if rows % size == 0)


@dataclass(frozen=True)
class Palettes:
    """Indices of type `element` (out, in, 1, 1) into palettes (groups, 1, 1, 1, 2^bits, 1).

    Without `subnormals` subnormal entries, which could be flushed to zero, are rounded to the nearest number
    that is not subnormal.
    """

    weight_format: WeightFormat
    element: ElementType
    subnormals: bool = True
    operation: str = "constexpr_lut_to_dense"
    lossless: bool = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the indices and the palettes."""
        palettes = (shape[0] // group_rows(shape[0]), 1, 1, 1, 1 << self.element.bits, 1)
        return (Part("indices", (*shape, 1, 1), self.element), Part("lut", palettes, ElementType.FP16))

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Return the number of rows in a group."""
        return group_rows(shape[0])

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        palettes = into["lut"]
        groups = piece.values.reshape(len(palettes), -1)
        indices = into["indices"].reshape(groups.shape)
        stored = np.empty_like(groups)
        for number, values in enumerate(groups):
            entries = fp16_palette(values, 1 << self.element.bits).astype(np.float32)
            if not self.subnormals:
                entries = without_subnormals(entries)
            palettes[number] = entries
            indices[number] = nearest(values, entries)
            np.take(entries, indices[number], out=stored[number], mode="clip")
        return stored.reshape(piece.values.shape)


LUT8 = Palettes(WeightFormat.LUT8, ElementType.UINT8)
LUT6 = Palettes(WeightFormat.LUT6, ElementType.UINT6)
LUT4 = Palettes(WeightFormat.LUT4, ElementType.UINT4)


def fp16_palette(values: Floats, size: int) -> NDArray[np.float16]:
    """Return `size` numbers in ascending order that approximate `values` with a small squared error.

    If there are no more distinct values than that, the result has these. Otherwise k-means starts from
    numbers whose density is the cube root of the values' density, the best spacing for many levels (P. F.
    Panter and W. Dite, "Quantization distortion in pulse-count modulation", 1951), or from evenly spaced
    numbers, if these are better. So the result is never worse than evenly spaced numbers.
    """
    ordered = _Ordered(np.sort(values))
    different = ordered.different(size)
    if different is not None:
        return np.pad(different.astype(np.float16), (0, size - len(different)), mode="edge")
    starts = (ordered.by_density(size), ordered.evenly(size))
    return ordered.settle(min(starts, key=ordered.squared_error)).astype(np.float16)


def nearest(values: Floats, entries: Floats) -> NDArray[np.uint8]:
    """Return for each value the index of the nearest entry; `entries` are up to 256 ascending fp16 numbers.

    A table gives the entry for the value rounded to fp16, which is at most one entry away from the nearest.
    That is many times faster than a search for every value.
    """
    borders = (entries[1:] + entries[:-1]) / 2
    starts = np.searchsorted(_FP16_ASCENDING, borders, side="right")
    counts = np.diff(starts, prepend=0, append=len(_FP16_ASCENDING))
    table = np.zeros(1 << 16, np.uint8)
    table[_FP16_CODES] = np.repeat(np.arange(len(entries), dtype=np.uint8), counts)
    with np.errstate(under="ignore"):
        found: NDArray[np.uint8] = table[values.astype(np.float16).view(np.uint16)]
    fences = np.concatenate([[-np.inf], borders, [np.inf]], dtype=np.float32)
    found += values > fences[1:][found]
    found -= values <= fences[found]
    return found


class _Ordered:
    """Sorted numbers with prefix sums."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.sums: Exact = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])

    def evenly(self, size: int) -> Exact:
        """Return `size` evenly spaced numbers, from the smallest value to the largest."""
        return np.linspace(self.values[0], self.values[-1], size, dtype=np.float64)

    def by_density(self, size: int) -> Exact:
        """Return `size` numbers whose density follows the cube root of the values' density.

        The density is estimated between quantiles, which are close where there are many values.
        """
        ranges = min(RANGES, len(self.values) - 1)
        places = np.arange(ranges + 1) * (len(self.values) - 1) // ranges
        edges = self.values[places].astype(np.float64)
        share = (np.cbrt(np.diff(places)) * np.cbrt(np.diff(edges)) ** 2).cumsum()
        wanted = (np.arange(size) + 0.5) / size * share[-1]
        numbers: Exact = np.interp(wanted, np.concatenate([[0.0], share]), edges)
        return numbers

    def different(self, most: int) -> Floats | None:
        """Return the distinct values; None if there are more than `most`."""
        firsts = np.flatnonzero(np.diff(self.values)) + 1
        return self.values[np.concatenate([[0], firsts])] if len(firsts) < most else None

    def settle(self, palette: Exact) -> Exact:
        """Run Lloyd's algorithm from `palette`; a number to which no value is nearest stays the same."""
        borders = None
        for _ in range(STEPS):
            previous, borders = borders, self._borders(palette)
            if previous is not None and (previous == borders).all():
                break
            counts = np.diff(borders)
            means = np.diff(self.sums[borders]) / np.maximum(counts, 1)
            palette = np.maximum.accumulate(np.where(counts > 0, means, palette))
        return palette

    def squared_error(self, palette: Exact) -> float:
        """Return the sum of squared differences from the nearest numbers, less a common constant."""
        borders = self._borders(palette)
        sums, counts = np.diff(self.sums[borders]), np.diff(borders)
        return float((counts * palette**2 - 2 * palette * sums).sum())

    def _borders(self, palette: Exact) -> NDArray[np.intp]:
        """Return the index of the first value that is nearest to each number, and the number of values."""
        middles = ((palette[1:] + palette[:-1]) / 2).astype(np.float32)
        inner = np.searchsorted(self.values, middles)
        return np.concatenate([[0], inner, [len(self.values)]])


@dataclass(frozen=True)
class Dense:
    """The weight itself as fp16 (out, in, 1, 1), rounded to nearest; subnormals only with `subnormals`."""

    subnormals: bool = True
    weight_format = WeightFormat.FP16
    operation = None
    lossless = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the weight as the only part."""
        return (Part("weight", (*shape, 1, 1), ElementType.FP16),)

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Return 1: rows are independent."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
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
"""The encoding of each format for tensors of any type."""

ENGINE_ENCODINGS: Mapping[WeightFormat, Encoding] = MappingProxyType(
    {
        WeightFormat.FP16: Dense(subnormals=False),
        WeightFormat.LUT8: replace(LUT8, subnormals=False),
        WeightFormat.INT8_CHANNEL: Int8Channel(FP16_NORMAL),
        WeightFormat.LUT6: replace(LUT6, subnormals=False),
        WeightFormat.LUT4: replace(LUT4, subnormals=False),
    }
)
"""The encodings for a Neural Engine, which may flush subnormal numbers to zero, so none are stored."""

REPACKED: Mapping[tuple[WeightFormat, GGMLQuantizationType], Encoding] = MappingProxyType(
    {
        (WeightFormat.INT8_BLOCK32, GGMLQuantizationType.Q8_0): RepackedQ8(),
        (WeightFormat.INT8_BLOCK32, GGMLQuantizationType.MXFP4): RepackedMXFP4(),
        (WeightFormat.INT4_BLOCK32, GGMLQuantizationType.Q4_0): RepackedQ4(),
        (WeightFormat.INT4_BLOCK32, GGMLQuantizationType.Q4_1): RepackedQ4WithMinimum(),
        (WeightFormat.INT4_BLOCK32, GGMLQuantizationType.Q4_K): RepackedQ4K(),
    }
)
"""The encodings that keep the GGUF's own integers."""

BLOCKWISE = (WeightFormat.INT8_BLOCK32, WeightFormat.INT4_BLOCK32)


@dataclass(frozen=True)
class Choice:
    """The encoding of a tensor; `fallback` is the reason if its format is not the requested one."""

    encoding: Encoding
    fallback: str | None = None


def choose(
    asked: WeightFormat, width: int, kind: GGMLQuantizationType | None, target: Target = Target.CPU
) -> Choice:
    """Return the encoding of a matrix with rows of `width` numbers, from blocks of type `kind`, if any.

    It has the format `asked`, with one exception: if the rows are not a whole number of blocks, it is
    int8-channel. A format that `target` does not accept (see targets.fits) is stored as for processors, so
    that it can be compared.
    """
    if target is not Target.CPU and asked in ENGINE_ENCODINGS:
        return Choice(ENGINE_ENCODINGS[asked])
    if asked in BLOCKWISE and width % BLOCK:
        reason = f"rows of {width} are not a whole number of blocks of {BLOCK}"
        return Choice(ENCODINGS[WeightFormat.INT8_CHANNEL], reason)
    repacked = None if kind is None else REPACKED.get((asked, kind))
    return Choice(repacked or ENCODINGS[asked])
