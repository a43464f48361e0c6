"""Build norms that neither overflow fp16 nor depend on subnormals, which may be flushed to zero."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.channel_layout import CHANNELS_AXIS

HEAD = 3
"""The axis of a head's dimensions in [1, heads, T, head_dim]."""

PEAK = 4.0
"""The largest magnitude of a row after the first division.

The divisor is then 2^14 at most, so its reciprocal is not subnormal.
"""

LARGEST_SUM = 2.0**15
"""The largest sum of squares that is allowed."""

SMALLEST_DIVISOR = 2.0**-12
"""The smallest divisor of a row, times PEAK. Divided by PEAK it is fp16's smallest normal number."""

SMALLEST_NORMAL = 2.0**-14
SMALLEST_ROOT = 2.0**-20
"""The smallest square root of epsilon; a smaller one is replaced, so that zeros are never divided by zero."""

LARGEST_ROOT = 2.0**5
"""The largest square root of epsilon in a row's own units, in which it is squared."""


@dataclass(frozen=True)
class Norm:
    """A norm over the hidden state: its weight and bias (d,), and whether the mean is subtracted first."""

    weight: NDArray[np.float16] | None
    bias: NDArray[np.float16] | None = None
    centred: bool = False


def channel_norm(x: Var, norm: Norm, epsilon: float, name: str) -> Var:
    """Return the norm of a channel tensor: RMSNorm, or LayerNorm if the norm is centred."""
    if norm.centred:
        x = centred(x)
    if norm.bias is None:
        return rms_norm(x, norm.weight, epsilon, name)
    normed = rms_norm(x, norm.weight, epsilon, f"{name}_unbiased")
    return mb.add(x=normed, y=_along(norm.bias, CHANNELS_AXIS), name=name)


def _along(values: NDArray[np.float16], axis: int) -> NDArray[np.float16]:
    """Return a vector as a tensor of rank 4, along an axis."""
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    return values.reshape(shape)


def _shrink(length: int) -> float:
    """Return the power of two by which rows of magnitude PEAK are multiplied before they are summed."""
    return 0.5 ** max(0, math.ceil(math.log2(PEAK * length / LARGEST_SUM)))


def centred(x: Var, axis: int = CHANNELS_AXIS) -> Var:
    """Return x less its mean over an axis.

    A sum of fp16 numbers may exceed its range, so a row is divided by its largest magnitude over PEAK first.
    """
    peak = mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True)
    divisor = mb.mul(x=mb.maximum(x=peak, y=np.float16(SMALLEST_DIVISOR)), y=np.float16(1 / PEAK))
    unit = mb.real_div(x=x, y=divisor)
    if (shrink := _shrink(int(x.shape[axis]))) < 1:
        unit, divisor = mb.mul(x=unit, y=np.float16(shrink)), mb.mul(x=divisor, y=np.float16(1 / shrink))
    mean = mb.reduce_mean(x=unit, axes=[axis], keep_dims=True)
    return mb.sub(x=x, y=mb.mul(x=mean, y=divisor))


def rms_norm(
    x: Var, weight: NDArray[np.float16] | None, epsilon: float, name: str, axis: int = CHANNELS_AXIS
) -> Var:
    """Return x / sqrt(mean(x^2) + epsilon) * weight over one axis; without a weight it is 1.

    Squares of fp16 numbers exceed its range at both ends, and numbers below 2^-14 may be flushed to zero. So
    a row is divided twice before it is squared: by its largest magnitude over PEAK, and then by
    sqrt(mean(|x|) + epsilon), which differs from its root mean square by a factor only. With d channels the
    squares then add up to PEAK * d at most, and their mean is at least 2 * PEAK / sqrt(d). Squares that are
    flushed, below 2^-14 each, are less than 0.07 % of that for d = 8192, and change the result by half as
    much. Epsilon is divided in the same way, as `root`, so that a row of zeros stays zero. docs/graph.md has
    the errors of other formulas.
    """
    root_epsilon = max(math.sqrt(epsilon), SMALLEST_ROOT)
    divisor = max(SMALLEST_DIVISOR, root_epsilon * PEAK / LARGEST_ROOT)
    peak = mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True)
    peak = mb.maximum(x=peak, y=np.float16(divisor))
    unit = mb.real_div(x=x, y=mb.mul(x=peak, y=np.float16(1 / PEAK)))
    # A factor that is a power of two keeps the constant a normal number.
    lift = max(0, math.ceil(math.log2(SMALLEST_NORMAL / (root_epsilon * PEAK))))
    root = mb.real_div(x=np.float16(root_epsilon * PEAK * 2**lift), y=peak)
    if (shrink := _shrink(int(x.shape[axis]))) < 1:
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
    return mb.mul(x=mb.mul(x=unit, y=inverse), y=_along(weight, axis), name=name)
