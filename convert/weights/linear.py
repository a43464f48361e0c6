"""Weights as integers times scales: one scale per output channel, or per block of 32 along a row."""

from dataclasses import dataclass

import numpy as np
from gguf.quants import Q4_K
from numpy.typing import NDArray

from anespec.convert.weights.encoding import (
    BLOCK,
    FP16_MAX,
    FP16_TINY,
    Floats,
    Part,
    Parts,
    Piece,
    extremes_of,
    squares_of_rows,
)
from anespec.gguf.dequantise import Q8_0_BLOCK
from anespec.gguf.element_types import ElementType
from anespec.manifests.schema import WeightFormat

SHIFT_SCALE = "constexpr_blockwise_shift_scale"


@dataclass(frozen=True)
class Grid:
    """Integers low..high, and where a scale may put a row's number of largest magnitude.

    Each of `tops` divides that number to give a scale that is tried; the first is the plain choice,
    which reaches it exactly.
    """

    low: int
    high: int
    tops: tuple[float, ...]

    def tops_for(self, width: int) -> tuple[float, ...]:
        """The tops to try for rows of `width` numbers: `tops`, and one that cuts the largest number short.

        Rounding costs width / 12 squared steps. A step that is smaller by the share e lowers that by 2e of
        itself, and costs the square of e * high, by which a single largest number is then cut; so the best
        e is width / (12 * high^2), up to a half. Wide rows gain by it, narrow ones by the other tops.
        """
        share = min(width / (12 * self.high**2), 0.5)
        return (*self.tops, self.tops[0] / (1 - share))

    @property
    def symmetric(self) -> bool:
        """Whether every number's negative is on the grid too."""
        return self.low == -self.high

    @property
    def largest_scale(self) -> np.float16:
        """The largest scale whose products with the grid are finite in fp16."""
        scale = np.float16(FP16_MAX / max(-self.low, self.high))
        exact = float(scale) * max(-self.low, self.high) <= FP16_MAX
        return scale if exact else np.nextafter(scale, np.float16(0))


INT8 = Grid(-127, 127, (127, 127.4))
"""Symmetric, so that a channel's scale means the same for either sign."""
INT4 = Grid(-8, 7, (-8, -7.45, 7, 7.45))
"""As in GGML's Q4_0 the largest number comes to stand at -8, which has no counterpart, unless 7 is better."""


def quantise_rows(
    values: Floats, extremes: Floats, grid: Grid, least: np.float16 = FP16_TINY
) -> tuple[Floats, NDArray[np.float16]]:
    """The integers (as floats) and one fp16 scale, of magnitude `least` or more, for each row of `values`.

    `values` are (n, width); `extremes` (n,) the rows' numbers of largest magnitude. Of the scales that the
    grid tries, the one with the least squared error over the row is taken; the plain one where none is
    better. Integers are chosen for the scale as rounded to fp16, so its rounding costs nothing.
    """
    if grid.symmetric:
        extremes = np.abs(extremes)
    steps, whole = np.empty_like(values), np.empty_like(values)
    tops = grid.tops_for(values.shape[1])
    tried = _scales(extremes, tops, grid, least)
    errors = [
        _squared_errors(values, scales, _overflows(top, grid), grid, steps, whole)
        for top, scales in zip(tops, tried, strict=True)
    ]
    best: NDArray[np.float16] = tried[np.argmin(errors, axis=0), np.arange(len(values))]
    _round_to_grid(values, best, True, grid, steps, whole)
    return whole, best


def _overflows(top: float, grid: Grid) -> bool:
    """Whether numbers may fall off the grid where the largest one is put at `top`."""
    return not grid.symmetric or top >= grid.high + 0.5


def _scales(extremes: Floats, tops: tuple[float, ...], grid: Grid, least: np.float16) -> NDArray[np.float16]:
    """The fp16 scales (tops, rows) that put `extremes` at `tops`; none is below `least` or too large."""
    exact = extremes / np.array(tops, np.float32)[:, None]
    size = np.abs(exact).astype(np.float16)
    # A scale among fp16's subnormal numbers may be rounded so far down that the grid falls short.
    reach = [(abs(top) if _overflows(top, grid) else grid.high) + 0.5 for top in tops]
    short = np.abs(extremes) > np.array(reach, np.float32)[:, None] * size.astype(np.float32)
    size = np.where(short, np.nextafter(size, np.float16(np.inf)), size)
    scales: NDArray[np.float16] = np.copysign(np.clip(size, least, grid.largest_scale), exact)
    return scales.astype(np.float16)


def _round_to_grid(
    values: Floats, scales: NDArray[np.float16], overflows: bool, grid: Grid, steps: Floats, whole: Floats
) -> None:
    """`steps` becomes the values over their scales, `whole` the nearest integers, of the grid where asked."""
    np.multiply(values, (1.0 / scales.astype(np.float32))[:, None], out=steps)
    np.rint(steps, out=whole)
    if overflows:
        np.clip(whole, grid.low, grid.high, out=whole)


def _squared_errors(
    values: Floats, scales: NDArray[np.float16], overflows: bool, grid: Grid, steps: Floats, whole: Floats
) -> Floats:
    _round_to_grid(values, scales, overflows, grid, steps, whole)
    np.subtract(steps, whole, out=steps)
    errors: Floats = squares_of_rows(steps) * scales.astype(np.float32) ** 2
    return errors


@dataclass(frozen=True)
class Int8Channel:
    """int8 (out, in, 1, 1) times one fp16 scale per output channel (out, 1, 1, 1), `least` or more.

    With FP16_NORMAL for `least` no scale is flushed to zero, and with it a whole channel. The steps of
    channels that stay below 127 of it, 0.0078, are then longer than they could be: no weight of theirs is
    off by more than half a step, 3.1e-5.
    """

    least: np.float16 = FP16_TINY
    weight_format = WeightFormat.INT8_CHANNEL
    operation = SHIFT_SCALE
    lossless = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Integers and scales."""
        return scaled_parts(shape, ElementType.INT8, shape[1])

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Every row stands alone."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        whole, scales = quantise_rows(piece.values, piece.extremes, INT8, self.least)
        into["data"][:], into["scale"][:] = whole, scales[:, None]
        whole *= scales.astype(np.float32)[:, None]
        return whole


@dataclass(frozen=True)
class _Blocks:
    """Integers times one fp16 scale per 32 weights of a row, quantised here from any source."""

    weight_format: WeightFormat
    element: ElementType
    grid: Grid
    operation: str = SHIFT_SCALE
    lossless: bool = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Integers and scales."""
        return scaled_parts(shape, self.element, BLOCK)

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Every row stands alone."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        shape = piece.values.shape
        blocks = piece.values.reshape(-1, BLOCK)
        whole, scales = quantise_rows(blocks, extremes_of(blocks), self.grid)
        into["data"][:], into["scale"][:] = whole.reshape(shape), scales.reshape(len(piece.values), -1)
        whole *= scales.astype(np.float32)[:, None]
        return whole.reshape(shape)


INT8_BLOCKS = _Blocks(WeightFormat.INT8_BLOCK32, ElementType.INT8, INT8)
INT4_BLOCKS = _Blocks(WeightFormat.INT4_BLOCK32, ElementType.INT4, INT4)


def scaled_parts(shape: tuple[int, int], element: ElementType, width: int) -> tuple[Part, ...]:
    """Integers (out, in, 1, 1) with a scale for every `width` of them along a row."""
    rows, columns = shape
    return (
        Part("data", (rows, columns, 1, 1), element),
        Part("scale", (rows, columns // width, 1, 1), ElementType.FP16),
    )


# GGUF blocks whose integers and scales are repacked as they are.
#
# Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. A Core ML weight is
# scale * (data - offset) with a scale and an offset per block of 32, where
#
# - Q8_0 (d * q) and Q4_0 (d * (q - 8)) need no offset;
# - Q4_1 (d * q + m) needs the offset -m / d. In fp16 that would be rounded by up to 0.4 % of a step; as
#   fp32, which the operation allows whatever the scale's type, it gives m back bit for bit;
# - Q4_K (d * s * q - dmin * t, with 6-bit s and t) keeps its integers too, but d * s has 17 bits: the scale
#   is rounded to fp16's 11, by up to 0.05 %, which is 0.02 % of the weights in the mean.

Q4_0_BLOCK = np.dtype([("d", "<f2"), ("q", "u1", (16,))])
Q4_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", (16,))])
Q4_K_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("q", "u1", (4, 32))])


@dataclass(frozen=True)
class _Repacked:
    """The common base of repacked formats."""

    operation = SHIFT_SCALE

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Every row stands alone."""
        return 1


@dataclass(frozen=True)
class RepackedQ8(_Repacked):
    """Q8_0: int8, and its own scale per block."""

    weight_format = WeightFormat.INT8_BLOCK32
    lossless = True

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Integers and scales."""
        return scaled_parts(shape, ElementType.INT8, BLOCK)

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        blocks = piece.blocks().view(Q8_0_BLOCK)
        into["data"].reshape(blocks["q"].shape)[:] = blocks["q"]
        into["scale"][:] = blocks["d"]
        return _products(into)


@dataclass(frozen=True)
class RepackedQ4(_Repacked):
    """Q4_0: int4 after 8 is taken off, and its own scale per block."""

    weight_format = WeightFormat.INT4_BLOCK32
    lossless = True

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Integers and scales."""
        return scaled_parts(shape, ElementType.INT4, BLOCK)

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        blocks = piece.blocks().view(Q4_0_BLOCK)
        data = into["data"].reshape(*blocks.shape, BLOCK)
        np.subtract(_halves(blocks["q"]).view(np.int8), np.int8(8), out=data)
        into["scale"][:] = blocks["d"]
        return _products(into)


@dataclass(frozen=True)
class _RepackedAffine(_Repacked):
    """uint4 with an fp16 scale and an fp32 offset per block."""

    weight_format = WeightFormat.INT4_BLOCK32

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Integers, scales and offsets."""
        data, scale = scaled_parts(shape, ElementType.UINT4, BLOCK)
        return (data, scale, Part("offset", scale.shape, ElementType.FP32))


@dataclass(frozen=True)
class RepackedQ4WithMinimum(_RepackedAffine):
    """Q4_1."""

    lossless = True

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        blocks = piece.blocks().view(Q4_1_BLOCK)
        return _affine(_halves(blocks["q"]), blocks["d"].astype(np.float32), blocks["m"], into)


@dataclass(frozen=True)
class RepackedQ4K(_RepackedAffine):
    """Q4_K: superblocks of eight blocks, whose scales and minimums are multiples of two fp16 numbers."""

    lossless = False

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        blocks = piece.blocks().view(Q4_K_BLOCK)
        scales, minimums = Q4_K.get_scale_min(blocks["scales"].reshape(-1, 12))
        count = len(blocks)
        d = blocks["d"].astype(np.float32)[..., None] * scales.reshape(*blocks.shape, 8)
        m = blocks["dmin"].astype(np.float32)[..., None] * minimums.reshape(*blocks.shape, 8)
        q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2)
        return _affine(q.reshape(count, -1, BLOCK), d.reshape(count, -1), -m.reshape(count, -1), into)


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(…, 16) bytes -> (…, 32) numbers of four bits: the low halves first, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _affine(q: NDArray[np.uint8], d: Floats, m: NDArray[np.floating], into: Parts) -> Floats:
    """Store d * q + m: `q` (rows, blocks, 32), `d` and `m` (rows, blocks).

    A block without a scale is m everywhere: m * (0 - -1).
    """
    minimum = m.astype(np.float32)
    scale = d.astype(np.float16)
    flat = scale == 0
    scale[flat] = minimum[flat]
    scale[scale == 0] = FP16_TINY
    offset = -minimum / scale.astype(np.float32)
    offset[flat & (minimum != 0)] = -1
    into["data"].reshape(q.shape)[:] = np.where(flat[..., None], 0, q)
    into["scale"][:] = scale
    into["offset"][:] = offset
    return _products(into)


def _products(into: Parts) -> Floats:
    """scale * (data - offset) in fp32: what the parts of a blockwise weight stand for."""
    data = into["data"]
    values = data.astype(np.float32).reshape(len(data), -1, BLOCK)
    if "offset" in into:
        values -= into["offset"][..., None]
    values *= into["scale"].astype(np.float32)[..., None]
    return values.reshape(data.shape)
