"""GGML's quantised blocks as float32: the gguf package's conversion, and a quick one for Q8_0."""

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

Q8_0_BLOCK = np.dtype([("d", "<f2"), ("q", "i1", (32,))])
"""A scale and 32 integers (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h)."""


def dequantised(raw: NDArray[np.uint8], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """Rows as stored, uint8 (rows, bytes of a row), as float32 (rows, numbers); infinities and NaN stay.

    Raises:
        NotImplementedError: the gguf package cannot dequantise this type.
    """
    # A scale may be no number; what comes of it is the caller's to judge, without a warning.
    with np.errstate(all="ignore"):
        if kind is GGMLQuantizationType.Q8_0:
            return _q8_0(raw)
        return np.asarray(dequantize(raw, kind), dtype=np.float32)


def _q8_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The same bits as the gguf package's, in a quarter of its time; most large files are of this type."""
    blocks = np.ascontiguousarray(raw).view(Q8_0_BLOCK)
    values = blocks["q"].astype(np.float32)
    values *= blocks["d"].astype(np.float32)[..., None]
    return values.reshape(len(raw), -1)
