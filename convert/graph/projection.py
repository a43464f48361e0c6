"""Projections: every one is a 1x1 convolution over [1, d, T, 1]."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.weights.stored import DenseWeight, ScaledWeight, StoredWeight


@dataclass(frozen=True)
class Projection:
    """A stored weight (out, in, 1, 1) and an optional fp16 bias (out,)."""

    weight: StoredWeight
    bias: NDArray[np.float16] | None = None


def _constant(weight: StoredWeight, name: str) -> Var | NDArray[np.float16]:
    match weight:
        case DenseWeight(values):
            return values
        case ScaledWeight(data, scale):
            return mb.constexpr_blockwise_shift_scale(data=data, scale=scale, name=f"{name}_weight")


def project(x: Var, projection: Projection, name: str) -> Var:
    """[1, in, T, 1] -> [1, out, T, 1]."""
    weight = _constant(projection.weight, name)
    if projection.bias is None:
        return mb.conv(x=x, weight=weight, name=name)
    return mb.conv(x=x, weight=weight, bias=projection.bias, name=name)
