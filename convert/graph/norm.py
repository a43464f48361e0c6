"""RMSNorm that neither overflows fp16 nor passes through its subnormal numbers, which may count as zero."""

import math

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.channel_layout import CHANNELS_AXIS

HEAD = 3
"""The axis of a head's dimensions in [1, heads, T, head_dim]."""

PEAK = 4.0
"""What the largest magnitude of a row becomes: its divisor, up to 2^14, then has no subnormal reciprocal."""

LARGEST_SUM = 2.0**15
"""What squares may add up to."""

SMALLEST_DIVISOR = 2.0**-12
"""The least that a row is divided by, times PEAK: divided by PEAK it is fp16's smallest normal number."""

SMALLEST_NORMAL = 2.0**-14
SMALLEST_ROOT = 2.0**-20
"""A smaller square root of epsilon counts as this one, so that a row of zeros is never divided by zero."""

LARGEST_ROOT = 2.0**5
"""What the root of epsilon may become in a row's own units, where it is squared."""


def rms_norm(
    x: Var, weight: NDArray[np.float16] | None, epsilon: float, name: str, axis: int = CHANNELS_AXIS
) -> Var:
    """x / sqrt(mean(x^2) + epsilon) * weight over one axis, the channels by default; without a weight, 1.

    Squares of fp16 numbers leave its range at both ends, and what is below 2^-14 may be flushed to zero. So a
    row is divided twice before its squares count: by its largest magnitude, over PEAK, and then by
    sqrt(mean(|x|) + epsilon), as good as its root mean square up to a factor. Now squares add up to PEAK * d
    at most, and their mean is at least 2 * PEAK / sqrt(d). Those that are flushed, below 2^-14 each, are less
    than 0.07 % of that for d = 8192, and cost half as much. Epsilon goes the same way, as `root`, so that a
    row of zeros stays one. docs/graph.md has what other formulas lose.
    """
    length = int(x.shape[axis])
    root_epsilon = max(math.sqrt(epsilon), SMALLEST_ROOT)
    divisor = max(SMALLEST_DIVISOR, root_epsilon * PEAK / LARGEST_ROOT)
    peak = mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True)
    peak = mb.maximum(x=peak, y=np.float16(divisor))
    unit = mb.real_div(x=x, y=mb.mul(x=peak, y=np.float16(1 / PEAK)))
    # A power of two keeps the constant a normal number.
    lift = max(0, math.ceil(math.log2(SMALLEST_NORMAL / (root_epsilon * PEAK))))
    root = mb.real_div(x=np.float16(root_epsilon * PEAK * 2**lift), y=peak)
    shrink = 0.5 ** max(0, math.ceil(math.log2(PEAK * length / LARGEST_SUM)))
    if shrink < 1:
        unit = mb.mul(x=unit, y=np.float16(shrink))
    if (scale := shrink * 0.5**lift) < 1:
        root = mb.mul(x=root, y=np.float16(scale))
    size = mb.reduce_mean(x=mb.abs(x=unit), axes=[axis], keep_dims=True)
    nearly = mb.rsqrt(x=mb.add(x=size, y=mb.mul(x=root, y=root)), epsilon=np.float16(0))
    even, root = mb.mul(x=unit, y=nearly), mb.mul(x=root, y=nearly)
    mean = mb.reduce_mean(x=mb.mul(x=even, y=even), axes=[axis], keep_dims=True)
    rest = mb.rsqrt(x=mb.add(x=mean, y=mb.mul(x=root, y=root)), epsilon=np.float16(0))
    inverse = mb.mul(x=nearly, y=rest)
    if weight is None:
        return mb.mul(x=unit, y=inverse, name=name)
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    return mb.mul(x=mb.mul(x=unit, y=inverse), y=weight.reshape(shape), name=name)
