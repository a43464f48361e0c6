"""The gated MLP."""

from dataclasses import dataclass

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.projection import Projection, project


@dataclass(frozen=True)
class MLPWeights:
    """The three projections of one layer."""

    gate: Projection
    up: Projection
    down: Projection


def gated_mlp(x: Var, weights: MLPWeights, name: str) -> Var:
    """down(silu(gate(x)) * up(x)) over [1, d, T, 1]."""
    gate = mb.silu(x=project(x, weights.gate, f"{name}_gate"))
    up = project(x, weights.up, f"{name}_up")
    return project(mb.mul(x=gate, y=up), weights.down, f"{name}_down")
