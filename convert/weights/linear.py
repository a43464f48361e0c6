"""Weights as integers times scales: one scale per output channel, or per block of 32 along a row."""

from dataclasses import dataclass

import numpy as np
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
from anespec.manifests.element_types import ElementType
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
