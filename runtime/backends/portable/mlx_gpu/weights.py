"""Hold the weights of projections as MLX multiplies with them: quantised in groups, or in fp16.

MLX has unsigned integers of a few bits, and for each group of 32, 64 or 128 along the input axis one scale
and one bias: w = scale * u + bias. A shard's integers q have a scale, and perhaps an offset, for a block of
any size: w = scale * (q - offset). With u = q + shift, that is a bias of -scale * (offset + shift). A block
is as many groups as it holds, each with the block's scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.mil_package import Packed
from anespec.runtime.backends.portable.mlx_gpu.library import on_gpu

GROUPS = (128, 64, 32)
"""The sizes of groups that MLX has kernels for, the one with the fewest scales first."""

BITS = (4, 8)
"""The bits of integers whose packed form is the shard's own."""


@dataclass(frozen=True)
class Quantised:
    """A matrix [out, in], or several [experts, out, in], as quantised numbers.

    `packed` is uint32 [..., in * bits / 32], lowest bits first; `scales` and `biases` are fp32
    [..., in / group]. fp32 holds a bias exactly, fp16 does not if there are offsets.
    """

    packed: mx.array
    scales: mx.array
    biases: mx.array
    group: int
    bits: int

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All arrays of the weight."""
        return self.packed, self.scales, self.biases

    def times(self, rows: mx.array) -> mx.array:
        """Return fp32 rows [T, in] times the transposed matrix, [T, out]."""
        return mx.quantized_matmul(
            rows,
            self.packed,
            self.scales,
            self.biases,
            transpose=True,
            group_size=self.group,
            bits=self.bits,
        )

    def gathered(self, rows: mx.array, experts: mx.array) -> mx.array:
        """Return each fp32 row [P, 1, in] times the transposed matrix of its expert [P]; fp32 [P, 1, out]."""
        return mx.gather_qmm(
            rows,
            self.packed,
            self.scales,
            self.biases,
            rhs_indices=experts,
            transpose=True,
            group_size=self.group,
            bits=self.bits,
        )


@dataclass(frozen=True)
class Dense:
    """A matrix [out, in], or several [experts, out, in], in fp16."""

    matrix: mx.array

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """All arrays of the weight."""
        return (self.matrix,)

    def times(self, rows: mx.array) -> mx.array:
        """Return rows [T, in], rounded to fp16, times the transposed matrix; fp32 [T, out]."""
        return (rows.astype(mx.float16) @ self.matrix.T).astype(mx.float32)

    def gathered(self, rows: mx.array, experts: mx.array) -> mx.array:
        """Return each row [P, 1, in] times the transposed matrix of its expert [P]; fp32 [P, 1, out]."""
        half, matrices = rows.astype(mx.float16), self.matrix.swapaxes(-1, -2)
        if on_gpu():
            return mx.gather_mm(half, matrices, rhs_indices=experts).astype(mx.float32)
        # The CPU build gathers matrices of fp32 alone.
        return (half @ mx.take(matrices, experts, axis=0)).astype(mx.float32)


Weight = Quantised | Dense


def stacked(weights: Sequence[Weight]) -> Weight | None:
    """Return the matrices of several experts as one weight; None if their formats or shapes differ."""
    quantised = [each for each in weights if isinstance(each, Quantised)]
    dense = [each for each in weights if isinstance(each, Dense)]
    forms = {(each.group, each.bits, each.packed.shape) for each in quantised}
    shapes = {each.matrix.shape for each in dense}
    if len(forms) + len(shapes) != 1:
        return None
    together = [mx.stack(list(parts)) for parts in zip(*(each.arrays for each in weights), strict=True)]
    mx.eval(together)
    if dense:
        return Dense(*together)
    packed, scales, biases = together
    return Quantised(packed, scales, biases, quantised[0].group, quantised[0].bits)


def of_integers(a: Arguments[Any]) -> Weight:
    """Return the weight of a `constexpr_blockwise_shift_scale`, [out, in, 1, 1] with blocks along `in`.

    In blocks that are no multiple of 32 it is dequantised to fp16, as MLX has no groups of such a size.
    """
    data = a.stored("data")
    rows, columns = data.shape[:2]
    scale = a.array("scale").reshape(rows, -1).astype(np.float32)
    offset = a.array("offset").reshape(rows, -1).astype(np.float32) if a.has("offset") else None
    block = columns // scale.shape[1]
    group = next((size for size in GROUPS if block % size == 0), None)
    bits = data.element.bits if isinstance(data, Packed) else 8 * data.dtype.itemsize
    if group is None or bits not in BITS:
        return _dequantised(a.array("data").reshape(rows, -1), scale, offset)
    signed = data.element.signed if isinstance(data, Packed) else data.dtype.kind == "i"
    shift = 2 ** (bits - 1) if signed else 0
    # To add half of the range to a signed number is to flip its highest bit.
    flipped = np.uint8(shift * (17 if bits == 4 else 1))
    stored = data.data if isinstance(data, Packed) else np.ascontiguousarray(data).view(np.uint8)
    words = np.bitwise_xor(stored, flipped).reshape(rows, -1).view(np.uint32)
    biases = -scale * (np.float32(shift) + (0 if offset is None else offset))
    per_block = block // group
    return Quantised(
        mx.array(words),
        mx.array(np.repeat(scale, per_block, axis=1)),
        mx.array(np.repeat(biases, per_block, axis=1).astype(np.float32)),
        group,
        bits,
    )


def _dequantised(data: NDArray[Any], scale: NDArray[Any], offset: NDArray[Any] | None) -> Dense:
    block = data.shape[1] // scale.shape[1]
    numbers = data.astype(np.float32)
    if offset is not None:
        numbers -= np.repeat(offset, block, axis=1)
    return Dense(mx.array((numbers * np.repeat(scale, block, axis=1)).astype(np.float16)))


def of_palettes(a: Arguments[Any]) -> Dense:
    """Return the weight of a `constexpr_lut_to_dense`, [out, in, 1, 1] with palettes for groups of rows.

    It is looked up once, since MLX has no palettes.
    """
    return Dense(mx.array(a.looked_up().astype(np.float16)))


def of_numbers(values: NDArray[Any]) -> Dense:
    """Return the weight of numbers [out, in, 1, 1] as they are stored."""
    return Dense(mx.array(values.reshape(values.shape[:2]).astype(np.float16)))
