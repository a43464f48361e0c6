"""Prepare recurrent mixers for the graph: their plans, and their tensors as weights to store."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.mixer import Mixer, MixerPlan
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.recurrent.delta_net import (
    DeltaNet,
    DeltaPlan,
    DeltaWeights,
    JoinedGates,
    SeparateGates,
)
from anespec.convert.graph.recurrent.ssd import SSD, SSDPlan, SSDWeights
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.facts import DeltaFacts, RecurrentFacts, SSDFacts
from anespec.convert.source.model import SourceModel, bias_name
from anespec.convert.source.recurrent import JOINED_GATES, SSM_NORM
from anespec.convert.source.recurrent_tensors import (
    DELTA_ALPHA,
    DELTA_BETA,
    DELTA_GATE,
    DELTA_QKV,
    SSM_BIAS,
    SSM_DECAY,
    SSM_DT,
    SSM_KERNEL,
    SSM_OUT,
    SSM_SKIP,
    SSM_XBC,
    SSM_Z,
    part_name,
)
from anespec.convert.weights.encoding import to_fp16
from anespec.system.errors import GGUFError

ProjectionOf = Callable[[str], Projection]
"""Returns a layer's projection by its role."""


def recurrent_plan(plan: ConversionPlan, mixer: RecurrentFacts) -> MixerPlan:
    """Return the plan of a recurrent mixer."""
    return _ssd_plan(plan, mixer) if isinstance(mixer, SSDFacts) else _delta_plan(plan, mixer)


def recurrent_mixer(plan: ConversionPlan, mixer: RecurrentFacts, of: ProjectionOf) -> Mixer:
    """Return a recurrent mixer with its weights.

    Raises:
        GGUFError: a tensor is not finite or cannot be dequantised, or a decay would let a state grow.
        UnsupportedModelError: a value is beyond fp16's range.
    """
    return _ssd(plan, mixer, of) if isinstance(mixer, SSDFacts) else _delta_net(plan, mixer, of)


def _ssd_plan(plan: ConversionPlan, mixer: SSDFacts) -> SSDPlan:
    taps, chunk = plan.pools_of(mixer)
    return SSDPlan(mixer.index, mixer, plan.model.facts.epsilon, taps, chunk)


def _ssd(plan: ConversionPlan, mixer: SSDFacts, of: ProjectionOf) -> SSD:
    model, step = plan.model, of(SSM_DT)
    kernel, norm = (part_name(mixer, f"{role}.weight") for role in (SSM_KERNEL, SSM_NORM))
    bias = model.bias(kernel)
    weights = SSDWeights(
        gate=of(SSM_Z),
        inputs=of(SSM_XBC),
        step=_with_bias(step, _vector(model, part_name(mixer, SSM_BIAS))),
        output=of(SSM_OUT),
        kernel=_vector(model, kernel).reshape(-1, mixer.taps),
        kernel_bias=None if bias is None else to_fp16(bias, bias_name(kernel)),
        decay=_decays(model, mixer),
        skip=_vector(model, part_name(mixer, SSM_SKIP)),
        norm=_vector(model, norm).reshape(mixer.groups, -1) if mixer.normed else None,
    )
    return SSD(_ssd_plan(plan, mixer), weights)


def _delta_plan(plan: ConversionPlan, mixer: DeltaFacts) -> DeltaPlan:
    taps, chunk = plan.pools_of(mixer)
    assert plan.chunks is not None and plan.chunks.solve is not None
    return DeltaPlan(mixer.index, mixer, plan.model.facts.epsilon, taps, chunk, plan.chunks.solve)


def _delta_net(plan: ConversionPlan, mixer: DeltaFacts, of: ProjectionOf) -> DeltaNet:
    model = plan.model
    kernel, norm = (part_name(mixer, f"{role}.weight") for role in (SSM_KERNEL, SSM_NORM))
    bias = _vector(model, part_name(mixer, SSM_BIAS))
    gates: SeparateGates | JoinedGates
    if mixer.joins_gates:
        gates = JoinedGates(of(JOINED_GATES), bias)
    else:
        gates = SeparateGates(_with_bias(of(DELTA_ALPHA), bias), of(DELTA_BETA))
    weights = DeltaWeights(
        inputs=of(DELTA_QKV),
        gate=of(DELTA_GATE),
        gates=gates,
        output=of(SSM_OUT),
        kernel=_vector(model, kernel).reshape(-1, mixer.taps),
        decay=_decays(model, mixer),
        norm=_vector(model, norm),
    )
    return DeltaNet(_delta_plan(plan, mixer), weights)


def _decays(model: SourceModel, mixer: RecurrentFacts) -> NDArray[np.float32]:
    """Return the decays by head, which must be negative.

    Files of Mamba 2 whose converter left the tensor as the model learned it have logarithms instead. Their
    tensor lacks the second axis.
    """
    name = part_name(mixer, SSM_DECAY)
    values = model.vector(name)
    if isinstance(mixer, SSDFacts) and len(model.file.info(name).shape) == 1:
        values = -np.exp(values)
    if values.max() >= 0:
        raise GGUFError(
            f"{model.file.path}: tensor {name!r} has a decay of {values.max():g}, which would let a state "
            "grow without bound; the file is corrupt"
        )
    return to_fp16(values, name).astype(np.float32)


def _vector(model: SourceModel, name: str) -> NDArray[np.float16]:
    return to_fp16(model.vector(name), name)


def _with_bias(projection: Projection, bias: NDArray[np.float16]) -> Projection:
    """Return the projection with one more bias."""
    given = projection.bias
    return Projection(projection.weight, bias if given is None else (given + bias).astype(np.float16))
