"""Build projections, each as a 1x1 convolution over a channel tensor (manifests.channel_layout)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.placeholder import Placeholder, placeholders
from anespec.convert.weights.stored import DeferredWeight


@dataclass(frozen=True)
class Projection:
    """A weight (out, in), which is computed when the shard is written, and an optional fp16 bias (out,)."""

    weight: DeferredWeight
    bias: NDArray[np.float16] | None = None


def _constant(weight: DeferredWeight, name: str) -> Var | Placeholder:
    parts = placeholders(weight, name)
    operation = weight.choice.encoding.operation
    if operation is None:
        return parts["weight"]
    return getattr(mb, operation)(name=f"{name}_weight", **parts)


def project(x: Var, projection: Projection, name: str) -> Var:
    """Apply a projection to a channel tensor of `in` channels; return one of `out` channels."""
    weight = _constant(projection.weight, name)
    if projection.bias is None:
        return mb.conv(x=x, weight=weight, name=name)
    return mb.conv(x=x, weight=weight, bias=projection.bias, name=name)
