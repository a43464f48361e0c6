"""Store weights as integers times scales, with a scale for each output channel or for 32 weights of a row."""

from dataclasses import dataclass

import numpy as np
from gguf.quants import MXFP4, Q4_K
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
    """Integers low..high, and the positions on them at which a row's number of largest magnitude is tried.

    That number divided by each of `tops` is a scale that is tried. The first is the usual choice, for which
    the largest number is on the grid.
    """

    low: int
    high: int
    tops: tuple[float, ...]

    def tops_for(self, width: int) -> tuple[float, ...]:
        """Return the tops to try for rows of `width` numbers: `tops`, and one that clips the largest number.

        The error of rounding is width / 12 squared steps. A step that is smaller by a fraction e reduces it
        by a fraction 2e, and adds the square of e * high, by which the single largest number is clipped. So
        the best e is width / (12 * high^2), up to a half. This top is best for wide rows, the others for
        narrow ones.
        """
        share = min(width / (12 * self.high**2), 0.5)
        return (*self.tops, self.tops[0] / (1 - share))

    @property
    def symmetric(self) -> bool:
        """Whether the grid is symmetric about zero."""
        return self.low == -self.high

    @property
    def largest_scale(self) -> np.float16:
        """The largest scale whose products with the grid are finite in fp16."""
        scale = np.float16(FP16_MAX / max(-self.low, self.high))
        exact = float(scale) * max(-self.low, self.high) <= FP16_MAX
        return scale if exact else np.nextafter(scale, np.float16(0))


INT8 = Grid(-127, 127, (127, 127.4))
"""The grid of int8, symmetric so that the sign of a channel's scale does not matter."""
INT4 = Grid(-8, 7, (-8, -7.45, 7, 7.45))
"""The grid of int4. As in GGML's Q4_0 the largest number is mapped to -8, unless 7 is better."""


def quantise_rows(
    values: Floats, extremes: Floats, grid: Grid, least: np.float16 = FP16_TINY
) -> tuple[Floats, NDArray[np.float16]]:
    """Return the integers (as floats) and the fp16 scale of each row of `values`.

    `values` are (n, width), `extremes` (n,) the numbers of largest magnitude in each row. Scales have a
    magnitude of at least `least`. Of the scales that the grid tries, the one with the least squared error
    over the row is used, or the usual one if none is better. The integers are computed for the scale rounded
    to fp16, so its rounding causes no error.
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
    """Return whether numbers may exceed the grid if the largest one is mapped to `top`."""
    return not grid.symmetric or top >= grid.high + 0.5


def _scales(extremes: Floats, tops: tuple[float, ...], grid: Grid, least: np.float16) -> NDArray[np.float16]:
    """Return the fp16 scales (tops, rows) that map `extremes` to `tops`, limited to the valid range."""
    exact = extremes / np.array(tops, np.float32)[:, None]
    size = np.abs(exact).astype(np.float16)
    # A subnormal scale may be rounded down so far that the largest number exceeds the grid.
    reach = [(abs(top) if _overflows(top, grid) else grid.high) + 0.5 for top in tops]
    short = np.abs(extremes) > np.array(reach, np.float32)[:, None] * size.astype(np.float32)
    size = np.where(short, np.nextafter(size, np.float16(np.inf)), size)
    scales: NDArray[np.float16] = np.copysign(np.clip(size, least, grid.largest_scale), exact)
    return scales.astype(np.float16)


def _round_to_grid(
    values: Floats, scales: NDArray[np.float16], overflows: bool, grid: Grid, steps: Floats, whole: Floats
) -> None:
    """Set `steps` to values over scales, and `whole` to the nearest integers, clipped if one `overflows`."""
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
    """int8 (out, in, 1, 1) times an fp16 scale per output channel (out, 1, 1, 1), at least `least`.

    With FP16_NORMAL as `least`, no scale is flushed to zero, which would make its whole channel zero. The
    steps of channels whose weights are all below 127 times FP16_NORMAL, 0.0078, are then longer than
    necessary: the error of their weights is up to half a step, 3.1e-5.
    """

    least: np.float16 = FP16_TINY
    weight_format = WeightFormat.INT8_CHANNEL
    operation = SHIFT_SCALE
    lossless = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the integers and the scales."""
        return scaled_parts(shape, ElementType.INT8, shape[1])

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Return 1: rows are independent."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        whole, scales = quantise_rows(piece.values, piece.extremes, INT8, self.least)
        into["data"][:], into["scale"][:] = whole, scales[:, None]
        whole *= scales.astype(np.float32)[:, None]
        return whole


@dataclass(frozen=True)
class _Blocks:
    """Integers times an fp16 scale for each 32 weights of a row, quantised from any GGML type."""

    weight_format: WeightFormat
    element: ElementType
    grid: Grid
    operation: str = SHIFT_SCALE
    lossless: bool = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the integers and the scales."""
        return scaled_parts(shape, self.element, BLOCK)

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Return 1: rows are independent."""
        return 1

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        shape = piece.values.shape
        blocks = piece.values.reshape(-1, BLOCK)
        whole, scales = quantise_rows(blocks, extremes_of(blocks), self.grid)
        into["data"][:], into["scale"][:] = whole.reshape(shape), scales.reshape(len(piece.values), -1)
        whole *= scales.astype(np.float32)[:, None]
        return whole.reshape(shape)


INT8_BLOCKS = _Blocks(WeightFormat.INT8_BLOCK32, ElementType.INT8, INT8)
INT4_BLOCKS = _Blocks(WeightFormat.INT4_BLOCK32, ElementType.INT4, INT4)


def scaled_parts(shape: tuple[int, int], element: ElementType, width: int) -> tuple[Part, ...]:
    """Return the parts for integers (out, in, 1, 1) with a scale for each `width` of them along a row."""
    rows, columns = shape
    return (
        Part("data", (rows, columns, 1, 1), element),
        Part("scale", (rows, columns // width, 1, 1), ElementType.FP16),
    )


# GGUF blocks whose integers and scales are repacked without requantising.
#
# Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. A Core ML weight is
# scale * (data - offset) with a scale and an offset per block of 32, where
#
# - Q8_0 (d * q) and Q4_0 (d * (q - 8)) need no offset;
# - Q4_1 (d * q + m) needs the offset -m / d. In fp16 it would be rounded by up to 0.4 % of a step. In fp32,
#   which the operation allows for any type of the scale, it gives m back bit for bit;
# - Q4_K (d * s * q - dmin * t, with 6-bit s and t) keeps its integers too, but d * s has 17 bits: the scale
#   is rounded to fp16's 11 bits, by up to 0.05 %, which changes the weights by 0.02 % on average.

Q4_0_BLOCK = np.dtype([("d", "<f2"), ("q", "u1", (16,))])
Q4_1_BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", (16,))])
Q4_K_BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("q", "u1", (4, 32))])


@dataclass(frozen=True)
class _Repacked:
    """The base class of repacked encodings."""

    operation = SHIFT_SCALE

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """Return 1: rows are independent."""
        return 1


@dataclass(frozen=True)
class RepackedQ8(_Repacked):
    """Q8_0 as int8, with its own scales of blocks."""

    weight_format = WeightFormat.INT8_BLOCK32
    lossless = True

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the integers and the scales."""
        return scaled_parts(shape, ElementType.INT8, BLOCK)

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        blocks = piece.blocks().view(Q8_0_BLOCK)
        into["data"].reshape(blocks["q"].shape)[:] = blocks["q"]
        into["scale"][:] = blocks["d"]
        return _products(into)


MXFP4_BLOCK = np.dtype([("e", "u1"), ("q", "u1", (BLOCK // 2,))])
MXFP4_NUMBERS = np.array(MXFP4.kvalues, np.int8)
"""Twice the numbers of a four-bit float (OCP microscaling formats 1.0)."""


@dataclass(frozen=True)
class RepackedMXFP4(_Repacked):
    """MXFP4 as int8, twice its numbers, with half its powers of two as scales of blocks.

    It is exact unless a scale is no fp16 number.
    """

    weight_format = WeightFormat.INT8_BLOCK32
    lossless = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the integers and the scales."""
        return scaled_parts(shape, ElementType.INT8, BLOCK)

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        blocks = np.ascontiguousarray(piece.blocks()).view(MXFP4_BLOCK)
        into["data"].reshape(*blocks.shape, BLOCK)[:] = MXFP4_NUMBERS[_halves(blocks["q"])]
        into["scale"][:] = np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)
        return _products(into)


@dataclass(frozen=True)
class RepackedQ4(_Repacked):
    """Q4_0 as int4, its numbers minus 8, with its own scales of blocks."""

    weight_format = WeightFormat.INT4_BLOCK32
    lossless = True

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the integers and the scales."""
        return scaled_parts(shape, ElementType.INT4, BLOCK)

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        blocks = piece.blocks().view(Q4_0_BLOCK)
        data = into["data"].reshape(*blocks.shape, BLOCK)
        np.subtract(_halves(blocks["q"]).view(np.int8), np.int8(8), out=data)
        into["scale"][:] = blocks["d"]
        return _products(into)


@dataclass(frozen=True)
class _RepackedAffine(_Repacked):
    """uint4 with an fp16 scale and an fp32 offset for each block."""

    weight_format = WeightFormat.INT4_BLOCK32

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Return the integers, the scales and the offsets."""
        data, scale = scaled_parts(shape, ElementType.UINT4, BLOCK)
        return (data, scale, Part("offset", scale.shape, ElementType.FP32))


@dataclass(frozen=True)
class RepackedQ4WithMinimum(_RepackedAffine):
    """Q4_1, whose blocks have a scale and a minimum."""

    lossless = True

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        blocks = piece.blocks().view(Q4_1_BLOCK)
        return _affine(_halves(blocks["q"]), blocks["d"].astype(np.float32), blocks["m"], into)


@dataclass(frozen=True)
class RepackedQ4K(_RepackedAffine):
    """Q4_K: superblocks of eight blocks, whose scales and minimums are multiples of two fp16 numbers."""

    lossless = False

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """Store a piece's rows; see Encoding."""
        blocks = piece.blocks().view(Q4_K_BLOCK)
        scales, minimums = Q4_K.get_scale_min(blocks["scales"].reshape(-1, 12))
        count = len(blocks)
        d = blocks["d"].astype(np.float32)[..., None] * scales.reshape(*blocks.shape, 8)
        m = blocks["dmin"].astype(np.float32)[..., None] * minimums.reshape(*blocks.shape, 8)
        q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2)
        return _affine(q.reshape(count, -1, BLOCK), d.reshape(count, -1), -m.reshape(count, -1), into)


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Unpack (…, 16) bytes to (…, 32) numbers of four bits: first the low halves, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _affine(q: NDArray[np.uint8], d: Floats, m: NDArray[np.floating], into: Parts) -> Floats:
    """Store d * q + m: `q` (rows, blocks, 32), `d` and `m` (rows, blocks).

    A block whose scale is 0 has the value m everywhere, which is stored as m * (0 - -1).
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
    """Return scale * (data - offset) in fp32, the weights that the parts of a blockwise encoding mean."""
    data = into["data"]
    values = data.astype(np.float32).reshape(len(data), -1, BLOCK)
    if "offset" in into:
        values -= into["offset"][..., None]
    values *= into["scale"].astype(np.float32)[..., None]
    return values.reshape(data.shape)
