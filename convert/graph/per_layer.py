"""Build per-layer inputs (Gemma 4's small models): each layer adds embeddings of its own."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import LayerActivation
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.mlp import activate
from anespec.convert.graph.norm import rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.manifests.channel_layout import CHANNELS_AXIS


@dataclass(frozen=True)
class PerLayerMix:
    """The weights that mix a shard's per-layer inputs: its rows of the model's projection, and the norm."""

    projection: Projection
    norm: NDArray[np.float16]
    hidden_size: int
    hidden_scale: float


@dataclass(frozen=True)
class PerLayerWeights:
    """The weights with which a layer adds its own input."""

    gate: Projection
    projection: Projection
    norm: NDArray[np.float16]


def mix_per_layer(embedded: Var, rows: Var, mix: PerLayerMix, epsilon: float) -> list[Var]:
    """Return each layer's input: (norm(projection(embedded) / sqrt(hidden_size)) + rows) / sqrt(2).

    `embedded` is the first hidden state times the graph's factor, `rows` are the looked-up embeddings of all
    layers, layers * width channels. The result is a channel tensor of `width` channels for each layer.
    """
    width = len(mix.norm)
    layers = rows.shape[CHANNELS_AXIS] // width
    projected = mb.mul(
        x=project(embedded, mix.projection, "per_layer_projection"),
        y=np.float16(1 / math.sqrt(mix.hidden_size) / mix.hidden_scale),
    )
    both = [projected, rows]
    if layers > 1:
        projected_of, rows_of = (mb.split(x=x, num_splits=layers, axis=CHANNELS_AXIS) for x in both)
    else:
        projected_of, rows_of = ([x] for x in both)
    return [
        mb.mul(
            x=mb.add(x=rms_norm(part, mix.norm, epsilon, f"per_layer_norm_{number}"), y=row),
            y=np.float16(1 / math.sqrt(2)),
        )
        for number, (part, row) in enumerate(zip(projected_of, rows_of, strict=True))
    ]


def add_per_layer(
    x: Var,
    own: Var,
    weights: PerLayerWeights,
    activation: LayerActivation,
    epsilon: float,
    hidden_scale: float,
    name: str,
) -> Var:
    """Return x + norm(projection(activation(gate(x / hidden_scale)) * own)), a channel tensor."""
    gate = project(x, weights.gate, f"{name}_input_gate")
    if hidden_scale != 1:
        gate = mb.mul(x=gate, y=np.float16(1 / hidden_scale))
    gate = activate(gate, activation)
    mixed = project(mb.mul(x=gate, y=own), weights.projection, f"{name}_input_projection")
    return mb.add(x=x, y=rms_norm(mixed, weights.norm, epsilon, f"{name}_input_norm"), name=f"{name}_input")
