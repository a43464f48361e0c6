"""How a projection is stored in a shard, and the quantisation that gets it there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import UnsupportedModelError
from anespec.manifests.schema import WeightFormat

FP16_MAX = float(np.finfo(np.float16).max)
FP16_TINY = np.float16(np.finfo(np.float16).smallest_subnormal)
INT8_MAX = 127

PIECE_ELEMENTS = 1 << 18
"""1 MB of float32: a piece stays in a core's cache."""
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

RowReader = Callable[[slice], NDArray[np.float32]]


@dataclass(frozen=True)
class DeferredWeight:
    """A projection (out, in) that is read and stored only when its shard is written.

    `load` returns it in `weight_format`. It is called once, and nothing keeps the result.
    """

    shape: tuple[int, int]
    weight_format: WeightFormat
    load: Callable[[], StoredWeight]


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


def store(read: RowReader, shape: tuple[int, int], weight_format: WeightFormat, name: str) -> StoredWeight:
    """Bring a float32 (out, in) matrix into `weight_format`, a few rows at a time.

    `read` gives rows of the matrix as an array that may be overwritten. Pieces are small enough to
    stay in a core's cache from the source's blocks to the stored bytes, and cores share them out.
    `name` is for error messages.

    Raises:
        UnsupportedModelError: a value is beyond fp16's range.
    """
    count, width = shape
    step = max(1, PIECE_ELEMENTS // width)
    pieces = [slice(first, min(first + step, count)) for first in range(0, count, step)]
    result = _empty(shape, weight_format)

    def convert(rows: slice) -> None:
        values = read(rows)
        match result:
            case DenseWeight(out):
                out[rows, :, 0, 0] = to_fp16(values, name)
            case ScaledWeight(data, scale):
                piece = quantise_per_channel(values, name)
                data[rows], scale[rows] = piece.data, piece.scale

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(convert, pieces):
            pass
    return result


def _empty(shape: tuple[int, int], weight_format: WeightFormat) -> StoredWeight:
    """Room for a weight of that shape."""
    match weight_format:
        case WeightFormat.FP16:
            return DenseWeight(np.empty((*shape, 1, 1), np.float16))
        case WeightFormat.INT8_CHANNEL:
            return ScaledWeight(np.empty((*shape, 1, 1), np.int8), np.empty((shape[0], 1, 1, 1), np.float16))
