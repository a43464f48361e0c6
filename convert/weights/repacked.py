"""GGUF blocks whose integers and scales are repacked as they are.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. A Core ML weight is
scale * (data - offset) with a scale and an offset per block of 32, where

- Q8_0 (d * q) and Q4_0 (d * (q - 8)) need no offset;
- Q4_1 (d * q + m) needs the offset -m / d. In fp16 that would be rounded by up to 0.4 % of a step; as
  fp32, which the operation allows whatever the scale's type, it gives m back bit for bit;
- Q4_K (d * s * q - dmin * t, with 6-bit s and t) keeps its integers too, but d * s has 17 bits: the scale
  is rounded to fp16's 11, by up to 0.05 %, which is 0.02 % of the weights in the mean.
"""

from dataclasses import dataclass

import numpy as np
from gguf.quants import Q4_K
from numpy.typing import NDArray

from anespec.convert.weights.encoding import BLOCK, FP16_TINY, Floats, Part, Parts, Piece
from anespec.convert.weights.linear import SHIFT_SCALE, scaled_parts
from anespec.manifests.dequantise import Q8_0_BLOCK
from anespec.manifests.element_types import ElementType
from anespec.manifests.schema import WeightFormat

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
