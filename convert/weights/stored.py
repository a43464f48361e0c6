"""How a projection is stored in a shard, and the quantisation that gets it there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import UnsupportedModelError
from anespec.manifests.schema import WeightFormat

FP16_MAX = float(np.finfo(np.float16).max)
FP16_TINY = np.float16(np.finfo(np.float16).smallest_subnormal)
INT8_MAX = 127
LARGEST_SCALE = np.float16(515.5)
"""127 times the next fp16 number is beyond fp16's range."""


@dataclass(frozen=True)
class DenseWeight:
    """fp16 (out, in, 1, 1)."""

    values: NDArray[np.float16]


@dataclass(frozen=True)
class ScaledWeight:
    """int8 (out, in, 1, 1) times an fp16 scale (out, 1, 1, 1) per output channel."""

    data: NDArray[np.int8]
    scale: NDArray[np.float16]


StoredWeight = DenseWeight | ScaledWeight


def require_fp16_range(values: NDArray[np.float32], name: str) -> None:
    """Raise UnsupportedModelError where a value is beyond fp16's range."""
    if values.size and float(np.abs(values).max()) > FP16_MAX:
        raise UnsupportedModelError(f"tensor {name!r} has values beyond fp16's range")


def to_fp16(values: NDArray[np.float32], name: str) -> NDArray[np.float16]:
    """Round to fp16.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    require_fp16_range(values, name)
    return values.astype(np.float16)


def quantise_per_channel(values: NDArray[np.float32], name: str) -> ScaledWeight:
    """Symmetric int8 with one scale per output channel: scale = absmax / 127.

    The scale is rounded to fp16 first and the integers are chosen for the rounded scale, so its
    rounding costs no accuracy: no value is further than scale / 2 from what is stored.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    absmax = np.maximum(values.max(axis=1), -values.min(axis=1))
    require_fp16_range(absmax, name)
    scale = (absmax / INT8_MAX).astype(np.float16)
    # A scale among fp16's subnormal numbers may be rounded so far down that 127 of it fall short.
    short = absmax > (INT8_MAX + 0.5) * scale.astype(np.float32)
    scale = np.where(short, np.nextafter(scale, np.float16(np.inf)), scale)
    scale = np.clip(scale, FP16_TINY, LARGEST_SCALE)
    scaled = values * (1.0 / scale.astype(np.float32))[:, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -INT8_MAX, INT8_MAX, out=scaled)
    return ScaledWeight(scaled.astype(np.int8)[:, :, None, None], scale[:, None, None, None])


def stored_bytes(rows: int, columns: int, weight_format: WeightFormat) -> int:
    """Bytes that a (rows, columns) matrix takes in `weight_format`, its scales included."""
    match weight_format:
        case WeightFormat.FP16:
            return 2 * rows * columns
        case WeightFormat.INT8_CHANNEL:
            return rows * columns + 2 * rows


def store(values: NDArray[np.float32], weight_format: WeightFormat, name: str) -> StoredWeight:
    """Bring a float32 (out, in) matrix into `weight_format`; `name` is for error messages."""
    match weight_format:
        case WeightFormat.FP16:
            return DenseWeight(to_fp16(values, name)[:, :, None, None])
        case WeightFormat.INT8_CHANNEL:
            return quantise_per_channel(values, name)
