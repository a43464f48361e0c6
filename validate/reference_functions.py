"""The functions of the reference that numpy lacks, of float32 arrays of any shape.

Overflows are left to the caller, who knows whether to warn of them (np.errstate).
"""

import math

import numpy as np

from anespec.convert.architectures.family import Activation
from anespec.validate.closeness import Floats


def rms_norm(x: Floats, epsilon: float) -> Floats:
    """`x` divided by the root mean square of its last axis."""
    normed: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    return normed


def softcapped(x: Floats, cap: float | None) -> Floats:
    """Scores or logits softly bounded by `cap`, where there is one."""
    if cap is None:
        return x
    bounded = x / np.float32(cap)
    np.tanh(bounded, out=bounded)
    bounded *= cap
    return bounded


def softmax(scores: Floats) -> Floats:
    """Over the last axis, of which every row has a score that is not -inf; overwrites `scores`."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def activated(x: Floats, activation: Activation) -> Floats:
    """SiLU, or GELU by its approximation with tanh."""
    match activation:
        case Activation.SILU:
            # Where this overflows the sigmoid is zero.
            divisor = np.exp(-x)
            divisor += 1
            return np.divide(x, divisor, out=divisor)
        case Activation.GELU:
            inner = x * x
            inner *= 0.044715
            inner += 1
            inner *= x
            inner *= math.sqrt(2 / math.pi)
            np.tanh(inner, out=inner)
            inner += 1
            inner *= x
            inner *= 0.5
            return inner
