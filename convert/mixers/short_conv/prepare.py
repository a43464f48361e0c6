"""Prepare a short convolution for the graph: its plan, and its tensors as weights to store."""

from anespec.convert.mixers.mixer import ProjectionOf
from anespec.convert.mixers.short_conv.facts import CONV_IN, CONV_KERNEL, CONV_OUT, ShortConvFacts
from anespec.convert.mixers.short_conv.graph import ShortConv, ShortConvPlan, ShortConvWeights
from anespec.convert.mixers.tensors import tensor_name
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.weights.encoding import to_fp16


def short_conv_plan(plan: ConversionPlan, mixer: ShortConvFacts) -> ShortConvPlan:
    """Return the plan of a layer's short convolution."""
    (pool,) = plan.pools_of(mixer)
    return ShortConvPlan(mixer.index, mixer.channels, mixer.taps, pool)


def short_conv_mixer(plan: ConversionPlan, mixer: ShortConvFacts, of: ProjectionOf) -> ShortConv:
    """Return a layer's short convolution with its weights; raises like `layers.layer_weights`."""
    name = tensor_name(mixer, CONV_KERNEL)
    kernel = to_fp16(plan.model.table(name), name)
    return ShortConv(short_conv_plan(plan, mixer), ShortConvWeights(of(CONV_IN), kernel, of(CONV_OUT)))
