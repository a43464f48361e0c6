"""Prepare Mamba 2 for the graph: its plan, and its tensors as weights to store."""

import numpy as np

from anespec.convert.mixers.mamba2.facts import SSM_DT, SSM_SKIP, SSM_XBC, SSM_Z, SSDFacts
from anespec.convert.mixers.mamba2.graph import SSD, SSDPlan, SSDWeights
from anespec.convert.mixers.mixer import ProjectionOf
from anespec.convert.mixers.recurrent.tensors import SSM_BIAS, SSM_DECAY, SSM_KERNEL, SSM_NORM, SSM_OUT
from anespec.convert.mixers.recurrent.weights import decays, with_bias
from anespec.convert.mixers.tensors import bias_name, part_name, tensor_name
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.weights.encoding import to_fp16
from anespec.convert.weights.vectors import fp16_vector


def ssd_plan(plan: ConversionPlan, mixer: SSDFacts) -> SSDPlan:
    """Return the plan of a layer's Mamba 2."""
    taps, chunk = plan.pools_of(mixer)
    return SSDPlan(mixer.index, mixer, plan.model.facts.epsilon, taps, chunk)


def ssd_mixer(plan: ConversionPlan, mixer: SSDFacts, of: ProjectionOf) -> SSD:
    """Return a layer's Mamba 2 with its weights.

    Files whose converter left the decays as the model learned them have logarithms, and their tensor lacks
    the second axis. Raises like `layers.layer_weights`, and GGUFError for decays that let a state grow.
    """
    model, step = plan.model, of(SSM_DT)
    kernel, norm = (tensor_name(mixer, role) for role in (SSM_KERNEL, SSM_NORM))
    bias, name = model.bias(kernel), part_name(mixer, SSM_DECAY)
    decay = model.vector(name)
    if len(model.file.info(name).shape) == 1:
        decay = -np.exp(decay)
    weights = SSDWeights(
        gate=of(SSM_Z),
        inputs=of(SSM_XBC),
        step=with_bias(step, fp16_vector(model, part_name(mixer, SSM_BIAS))),
        output=of(SSM_OUT),
        kernel=fp16_vector(model, kernel).reshape(-1, mixer.taps),
        kernel_bias=None if bias is None else to_fp16(bias, bias_name(kernel)),
        decay=decays(model, name, decay),
        skip=fp16_vector(model, part_name(mixer, SSM_SKIP)),
        norm=fp16_vector(model, norm).reshape(mixer.groups, -1) if mixer.normed else None,
    )
    return SSD(ssd_plan(plan, mixer), weights)
