"""Build the gated MLP."""

from dataclasses import dataclass

from anespec.convert.families.family import Activation
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.projection import Projection, project


@dataclass(frozen=True)
class MLPWeights:
    """The three projections of one layer's MLP."""

    gate: Projection
    up: Projection
    down: Projection


def activate(x: Var, activation: Activation) -> Var:
    """Apply the activation function, elementwise."""
    match activation:
        case Activation.SILU:
            return mb.silu(x=x)
        case Activation.GELU:
            return mb.gelu(x=x, mode="TANH_APPROXIMATION")


def gated_mlp(x: Var, weights: MLPWeights, activation: Activation, name: str) -> Var:
    """Return down(activation(gate(x)) * up(x)) of a channel tensor."""
    gate = activate(project(x, weights.gate, f"{name}_gate"), activation)
    up = project(x, weights.up, f"{name}_up")
    return project(mb.mul(x=gate, y=up), weights.down, f"{name}_down")
