"""Prepare a gated delta net for the graph: its plan, and its tensors as weights to store."""

from anespec.convert.mixers.delta_net.facts import (
    DELTA_ALPHA,
    DELTA_BETA,
    DELTA_GATE,
    DELTA_QKV,
    JOINED_GATES,
    DeltaFacts,
)
from anespec.convert.mixers.delta_net.graph import (
    DeltaNet,
    DeltaPlan,
    DeltaWeights,
    JoinedGates,
    SeparateGates,
)
from anespec.convert.mixers.mixer import ProjectionOf
from anespec.convert.mixers.recurrent.tensors import SSM_BIAS, SSM_DECAY, SSM_KERNEL, SSM_NORM, SSM_OUT
from anespec.convert.mixers.recurrent.weights import decays, with_bias
from anespec.convert.mixers.tensors import part_name, tensor_name
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.weights.vectors import fp16_vector


def delta_plan(plan: ConversionPlan, mixer: DeltaFacts) -> DeltaPlan:
    """Return the plan of a layer's gated delta net."""
    taps, chunk = plan.pools_of(mixer)
    assert plan.chunks is not None and plan.chunks.solve is not None
    return DeltaPlan(mixer.index, mixer, plan.model.facts.epsilon, taps, chunk, plan.chunks.solve)


def delta_mixer(plan: ConversionPlan, mixer: DeltaFacts, of: ProjectionOf) -> DeltaNet:
    """Return a layer's gated delta net with its weights.

    Raises like `layers.layer_weights`, and GGUFError for a decay that would let a state grow.
    """
    model = plan.model
    bias, decay = fp16_vector(model, part_name(mixer, SSM_BIAS)), part_name(mixer, SSM_DECAY)
    gates: SeparateGates | JoinedGates
    if mixer.joins_gates:
        gates = JoinedGates(of(JOINED_GATES), bias)
    else:
        gates = SeparateGates(with_bias(of(DELTA_ALPHA), bias), of(DELTA_BETA))
    weights = DeltaWeights(
        inputs=of(DELTA_QKV),
        gate=of(DELTA_GATE),
        gates=gates,
        output=of(SSM_OUT),
        kernel=fp16_vector(model, tensor_name(mixer, SSM_KERNEL)).reshape(-1, mixer.taps),
        decay=decays(model, decay, model.vector(decay)),
        norm=fp16_vector(model, tensor_name(mixer, SSM_NORM)),
    )
    return DeltaNet(delta_plan(plan, mixer), weights)
