"""Build the MLP, gated or plain."""

from dataclasses import dataclass

import numpy as np

from anespec.convert.families.family import XIELU, Activation, LayerActivation
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.projection import Projection, project


@dataclass(frozen=True)
class MLPWeights:
    """The projections of one layer's MLP; without a gate it is plain."""

    gate: Projection | None
    up: Projection
    down: Projection


def activate(x: Var, activation: LayerActivation) -> Var:
    """Apply the activation function, elementwise."""
    match activation:
        case Activation.SILU:
            return mb.silu(x=x)
        case Activation.GELU:
            return mb.gelu(x=x, mode="TANH_APPROXIMATION")
        case Activation.RELU_SQUARED:
            positive = mb.maximum(x=x, y=np.float16(0))
            return mb.mul(x=positive, y=positive)
        case XIELU():
            return _xielu(x, activation)
    raise AssertionError(f"{activation} cannot be applied to one value")


SWIGLU_LIMIT, SWIGLU_SLOPE = 7.0, 1.702
"""The bounds and the slope of the clamped SwiGLU."""


def clamped_swiglu(gate: Var, up: Var) -> Var:
    """Return gate * sigmoid(1.702 gate) * (up + 1), with the gate at most 7 and up within -7 to 7."""
    gate = at_most(gate, SWIGLU_LIMIT)
    switch = mb.sigmoid(x=mb.mul(x=gate, y=np.float16(SWIGLU_SLOPE)))
    up = mb.maximum(x=at_most(up, SWIGLU_LIMIT), y=np.float16(-SWIGLU_LIMIT))
    return mb.mul(x=mb.mul(x=gate, y=switch), y=mb.add(x=up, y=np.float16(1)))


def at_most(x: Var, limit: float) -> Var:
    """Return x, but at most `limit`; the graph has a maximum but no minimum, so signs are turned."""
    turned = mb.maximum(x=mb.mul(x=x, y=np.float16(-1)), y=np.float16(-limit))
    return mb.mul(x=turned, y=np.float16(-1))


def _xielu(x: Var, factors: XIELU) -> Var:
    """Return xIELU. exp(x) - 1 is 2 t / (1 - t) with t = tanh(x / 2), which is precise near zero, too."""
    positive = mb.maximum(x=x, y=np.float16(0))
    negative = mb.sub(x=x, y=positive)
    half = mb.tanh(x=mb.mul(x=negative, y=np.float16(0.5)))
    less_one = mb.real_div(x=mb.mul(x=half, y=np.float16(2)), y=mb.sub(x=np.float16(1), y=half))
    below = mb.mul(x=mb.sub(x=less_one, y=negative), y=np.float16(factors.exponential))
    above = mb.mul(x=mb.mul(x=positive, y=np.float16(factors.square)), y=positive)
    return mb.add(x=mb.add(x=above, y=below), y=mb.mul(x=x, y=np.float16(factors.linear)))


def middle_of(x: Var, gate: Projection | None, up: Projection, activation: LayerActivation, name: str) -> Var:
    """Return the middle of an MLP: activation(gate(x)) * up(x), or what the activation makes of both.

    Without a gate it is activation(up(x)).
    """
    if gate is None:
        return activate(project(x, up, f"{name}_up"), activation)
    gated = project(x, gate, f"{name}_gate")
    if activation is Activation.CLAMPED_SWIGLU:
        return clamped_swiglu(gated, project(x, up, f"{name}_up"))
    return mb.mul(x=activate(gated, activation), y=project(x, up, f"{name}_up"))


def mlp(x: Var, weights: MLPWeights, activation: LayerActivation, name: str) -> Var:
    """Return down(activation(gate(x)) * up(x)) of a channel tensor, or down(activation(up(x)))."""
    middle = middle_of(x, weights.gate, weights.up, activation, name)
    return project(middle, weights.down, f"{name}_down")
