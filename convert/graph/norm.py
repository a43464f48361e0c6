"""RMSNorm that neither overflows nor underflows fp16."""

import math

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb

SMALLEST_PEAK = np.float16(2.0**-14)
CHANNELS, HEAD = 1, 3
"""Axes: the channels of [1, d, T, 1], and a head's dimensions in [1, heads, T, head_dim]."""


def rms_norm(
    x: Var, weight: NDArray[np.float16] | None, epsilon: float, name: str, axis: int = CHANNELS
) -> Var:
    """x / sqrt(mean(x^2) + epsilon) * weight over one axis; without a weight, 1.

    Squares of fp16 numbers leave fp16's range at both ends (residual streams reach thousands,
    embeddings start at hundredths), so each token is divided by its largest magnitude first. That
    leaves the result as it is when epsilon is divided by the square of it: (sqrt(epsilon) / peak)^2.
    """
    peak = mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True)
    peak = mb.maximum(x=peak, y=SMALLEST_PEAK)
    unit = mb.real_div(x=x, y=peak)
    offset = mb.real_div(x=np.float16(math.sqrt(epsilon)), y=peak)
    mean = mb.reduce_mean(x=mb.mul(x=unit, y=unit), axes=[axis], keep_dims=True)
    inverse = mb.rsqrt(x=mb.add(x=mean, y=mb.mul(x=offset, y=offset)), epsilon=np.float16(0))
    if weight is None:
        return mb.mul(x=unit, y=inverse, name=name)
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    return mb.mul(x=mb.mul(x=unit, y=inverse), y=weight.reshape(shape), name=name)
