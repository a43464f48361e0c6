"""Weights as indices into palettes of fp16 numbers, one palette per group of output channels.

A palette is found by k-means in one dimension. There, clusters are runs of the sorted numbers, so with
their prefix sums a step of Lloyd's algorithm costs as much as finding the runs' borders, whatever the
count of numbers (S. P. Lloyd, "Least squares quantization in PCM", 1982).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.weights.encoding import Floats, Part, Parts, Piece
from anespec.manifests.element_types import ElementType
from anespec.manifests.schema import WeightFormat

GROUP_ROWS = 16
"""Output channels that share a palette: in rows of 3072 a palette of 64 is then 0.4 % of its indices."""
STEPS = 30
"""Steps of Lloyd's algorithm at most; on trained and random weights the last ones move nothing."""

Exact = NDArray[np.float64]


def group_rows(rows: int) -> int:
    """How many of a matrix's rows share a palette: the most up to GROUP_ROWS that divide them all."""
    return next(size for size in range(min(GROUP_ROWS, rows), 0, -1) if rows % size == 0)


@dataclass(frozen=True)
class Palettes:
    """Indices of `element` (out, in, 1, 1) into palettes (groups, 1, 1, 1, 2^bits, 1)."""

    weight_format: WeightFormat
    element: ElementType
    operation: str = "constexpr_lut_to_dense"
    lossless: bool = False

    def parts(self, shape: tuple[int, int]) -> tuple[Part, ...]:
        """Indices and palettes."""
        palettes = (shape[0] // group_rows(shape[0]), 1, 1, 1, 1 << self.element.bits, 1)
        return (Part("indices", (*shape, 1, 1), self.element), Part("lut", palettes, ElementType.FP16))

    def row_multiple(self, shape: tuple[int, int]) -> int:
        """A group's rows."""
        return group_rows(shape[0])

    def encode(self, piece: Piece, into: Parts) -> Floats:
        """See Encoding."""
        palettes = into["lut"]
        groups = piece.values.reshape(len(palettes), -1)
        indices = into["indices"].reshape(groups.shape)
        stored = np.empty_like(groups)
        for number, values in enumerate(groups):
            palette = fp16_palette(values, 1 << self.element.bits)
            entries = palette.astype(np.float32)
            nearest = np.searchsorted((entries[1:] + entries[:-1]) / 2, values)
            palettes[number], indices[number] = palette, nearest
            np.take(entries, nearest, out=stored[number])
        return stored.reshape(piece.values.shape)


LUT6 = Palettes(WeightFormat.LUT6, ElementType.UINT6)
LUT4 = Palettes(WeightFormat.LUT4, ElementType.UINT4)


def fp16_palette(values: Floats, size: int) -> NDArray[np.float16]:
    """`size` numbers, ascending, that stand for `values` with a small squared error.

    The better of two k-means: from evenly spaced numbers, so that it is never worse than those, and from
    numbers that are dense where the values are, as the cube root of their density: the best spacing for
    many levels (P. F. Panter and W. Dite, "Quantization distortion in pulse-count modulation", 1951).
    """
    ordered = _Ordered(np.sort(values))
    starts = (ordered.evenly(size), ordered.by_density(size))
    best = min((ordered.settle(start) for start in starts), key=ordered.squared_error)
    return best.astype(np.float16)


class _Ordered:
    """Sorted numbers with their prefix sums."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.sums: Exact = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])

    def evenly(self, size: int) -> Exact:
        """`size` evenly spaced numbers, from the smallest value to the largest."""
        return np.linspace(self.values[0], self.values[-1], size, dtype=np.float64)

    def by_density(self, size: int) -> Exact:
        """`size` numbers whose density follows the cube root of the values' own."""
        bins = 8 * size
        edges = np.linspace(self.values[0], self.values[-1], bins + 1, dtype=np.float64)
        borders = np.searchsorted(self.values, edges[1:-1].astype(np.float32))
        share = np.cbrt(np.diff(borders, prepend=0, append=len(self.values))).cumsum()
        wanted = (np.arange(size) + 0.5) / size * share[-1]
        numbers: Exact = np.interp(wanted, np.concatenate([[0.0], share]), edges)
        return numbers

    def settle(self, palette: Exact) -> Exact:
        """Lloyd's algorithm from `palette`; a number that no value is nearest to stays where it is."""
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
        """The sum of squared differences from the nearest numbers, up to what all palettes share."""
        borders = self._borders(palette)
        sums, counts = np.diff(self.sums[borders]), np.diff(borders)
        return float((counts * palette**2 - 2 * palette * sums).sum())

    def _borders(self, palette: Exact) -> NDArray[np.intp]:
        """Where each number's run of nearest values begins, and the end."""
        middles = ((palette[1:] + palette[:-1]) / 2).astype(np.float32)
        inner = np.searchsorted(self.values, middles)
        return np.concatenate([[0], inner, [len(self.values)]])
