"""RMSNorm as it was: one division, by the largest magnitude; wrong where subnormal numbers are flushed."""

import math

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.channel_layout import CHANNELS_AXIS


def divided_once(
    x: Var,
    weight: NDArray[np.float16] | None,
    epsilon: float,
    name: str,
    axis: int = CHANNELS_AXIS,
    times: float = 1,
) -> Var:
    """The same as `rms_norm`; `times` is what the largest magnitude becomes."""
    peak = mb.mul(x=mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True), y=np.float16(1 / times))
    peak = mb.maximum(x=peak, y=np.float16(2.0**-14))
    unit, root = mb.real_div(x=x, y=peak), mb.real_div(x=np.float16(math.sqrt(epsilon)), y=peak)
    mean = mb.reduce_mean(x=mb.mul(x=unit, y=unit), axes=[axis], keep_dims=True)
    inverse = mb.rsqrt(x=mb.add(x=mean, y=mb.mul(x=root, y=root)), epsilon=np.float16(0))
    if weight is None:
        return mb.mul(x=unit, y=inverse, name=name)
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    return mb.mul(x=mb.mul(x=unit, y=inverse), y=weight.reshape(shape), name=name)
