"""The one place that a kind of mixer stands in for the graph: how its facts become a plan and a mixer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anespec.convert.mixers.attention.prepare import attention_mixer, attention_plan
from anespec.convert.mixers.delta_net.prepare import delta_mixer, delta_plan
from anespec.convert.mixers.kinds import (
    AttentionFacts,
    DeltaFacts,
    LatentFacts,
    MixerFacts,
    ShortConvFacts,
    SSDFacts,
)
from anespec.convert.mixers.latent.prepare import latent_mixer, latent_plan
from anespec.convert.mixers.mamba2.prepare import ssd_mixer, ssd_plan
from anespec.convert.mixers.mixer import Mixer, MixerPlan, ProjectionOf
from anespec.convert.mixers.short_conv.prepare import short_conv_mixer, short_conv_plan
from anespec.convert.planning.plan import ConversionPlan


@dataclass(frozen=True)
class MixerEntry:
    """How the facts of a kind become a plan, and a mixer with its weights."""

    plan: Callable[[ConversionPlan, Any], MixerPlan]
    mixer: Callable[[ConversionPlan, Any, ProjectionOf], Mixer]


MIXERS: Mapping[type[MixerFacts], MixerEntry] = {
    AttentionFacts: MixerEntry(attention_plan, attention_mixer),
    LatentFacts: MixerEntry(latent_plan, latent_mixer),
    ShortConvFacts: MixerEntry(short_conv_plan, short_conv_mixer),
    SSDFacts: MixerEntry(ssd_plan, ssd_mixer),
    DeltaFacts: MixerEntry(delta_plan, delta_mixer),
}
"""The kinds of mixers, by their facts."""
