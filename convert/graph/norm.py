"""RMSNorm that neither overflows nor underflows fp16."""

import math

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb

SMALLEST_PEAK = np.float16(2.0**-14)


def rms_norm(x: Var, weight: NDArray[np.float16], epsilon: float, name: str) -> Var:
    """x / sqrt(mean(x^2) + epsilon) * weight over the channels of [1, d, T, 1].

    Squares of fp16 numbers leave fp16's range at both ends (residual streams reach thousands,
    embeddings start at hundredths), so each token is divided by its largest magnitude first. That
    leaves the result as it is when epsilon is divided by the square of it: (sqrt(epsilon) / peak)^2.
    """
    peak = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
    peak = mb.maximum(x=peak, y=SMALLEST_PEAK)
    unit = mb.real_div(x=x, y=peak)
    offset = mb.real_div(x=np.float16(math.sqrt(epsilon)), y=peak)
    mean = mb.reduce_mean(x=mb.mul(x=unit, y=unit), axes=[1], keep_dims=True)
    inverse = mb.rsqrt(x=mb.add(x=mean, y=mb.mul(x=offset, y=offset)), epsilon=np.float16(0))
    return mb.mul(x=mb.mul(x=unit, y=inverse), y=weight.reshape(1, -1, 1, 1), name=name)
