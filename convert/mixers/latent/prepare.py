"""Prepare latent attention for the graph: its plan, and its tensors as weights to store."""

import numpy as np
from numpy.typing import NDArray

from anespec.convert.mixers.attention.graph import AttentionSizes
from anespec.convert.mixers.latent.facts import (
    HEAD_KEY,
    HEAD_VALUE,
    LATENT,
    LATENT_NORM,
    OUTPUT,
    QUERY,
    QUERY_LATENT,
    QUERY_NORM,
    QUERY_OUTPUT,
    LatentFacts,
)
from anespec.convert.mixers.latent.graph import LatentAttention, LatentPlan, LatentWeights, QueryLatent
from anespec.convert.mixers.mixer import ProjectionOf
from anespec.convert.mixers.tensors import tensor_name
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.matrix import numbered_role
from anespec.convert.weights.vectors import fp16_vector


def latent_plan(plan: ConversionPlan, mixer: LatentFacts) -> LatentPlan:
    """Return the plan of a layer's latent attention."""
    (pool,) = plan.pools_of(mixer)
    sizes = AttentionSizes(
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        head_dim=mixer.head_dim,
        rotary_dim=mixer.rotary_dim,
        shape=plan.attention,
        scale=mixer.scale,
        epsilon=plan.model.facts.epsilon,
    )
    rope, _ = plan.ropes_of(mixer)
    return LatentPlan(mixer.index, sizes, mixer.plain, pool, rope)


def latent_mixer(plan: ConversionPlan, mixer: LatentFacts, of: ProjectionOf) -> LatentAttention:
    """Return a layer's latent attention with its weights; raises like `layers.layer_weights`."""

    def norm(role: str) -> NDArray[np.float16]:
        return fp16_vector(plan.model, tensor_name(mixer, role))

    down = None
    if mixer.query_latent is not None:
        down = QueryLatent(of(QUERY_LATENT), norm(QUERY_NORM))
    weights = LatentWeights(
        query_latent=down,
        queries=of(QUERY if down is None else QUERY_OUTPUT),
        kept=of(LATENT),
        norm=norm(LATENT_NORM),
        head_keys=[of(numbered_role(HEAD_KEY, head)) for head in range(mixer.heads)],
        head_values=[of(numbered_role(HEAD_VALUE, head)) for head in range(mixer.heads)],
        output=of(OUTPUT),
    )
    return LatentAttention(latent_plan(plan, mixer), weights)
