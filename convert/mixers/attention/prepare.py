"""Prepare attention for the graph: its plan, and its tensors as weights to store."""

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import WeightlessNorm
from anespec.convert.mixers.attention.facts import (
    ATTENTION_OUTPUT,
    K_NORM,
    OUTPUT_GATE,
    Q_NORM,
    SINKS,
    AttentionFacts,
    K,
    Q,
    V,
)
from anespec.convert.mixers.attention.graph import (
    Attention,
    AttentionPlan,
    AttentionSizes,
    AttentionWeights,
    KeyWeights,
)
from anespec.convert.mixers.mixer import ProjectionOf
from anespec.convert.mixers.tensors import tensor_name
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.weights.encoding import to_fp16


def attention_plan(plan: ConversionPlan, attention: AttentionFacts) -> AttentionPlan:
    """Return the plan of a layer's attention."""
    facts = plan.model.facts
    query_rope, key_rope = plan.ropes_of(attention)
    (pool,) = plan.pools_of(attention)
    return AttentionPlan(
        index=attention.index,
        sizes=AttentionSizes(
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            rotary_dim=attention.rotary_dim,
            shape=plan.attention,
            scale=attention.scale,
            epsilon=facts.epsilon,
            head_norm=facts.family.head_norm,
            norm_values=facts.family.value_norm is WeightlessNorm.EACH_HEAD,
            attention_softcap=facts.attention_softcap,
            clamp=facts.attention_clamp,
            gate_beside_query=facts.family.gate_beside_query,
            gates_heads=facts.family.gates_heads,
        ),
        pool=pool,
        query_rope=query_rope,
        key_rope=key_rope,
        kv_layer=attention.kv_layer,
    )


def attention_mixer(plan: ConversionPlan, attention: AttentionFacts, of: ProjectionOf) -> Attention:
    """Return a layer's attention with its weights; raises like `layers.layer_weights`."""
    model = plan.model

    def head_norm(role: str) -> NDArray[np.float16] | None:
        if role not in attention.head_norms(model.tensors):
            return None
        return to_fp16(model.head_norm(attention, role), tensor_name(attention, role))

    keys = None
    if attention.owns_kv:
        v = None if attention.value_is_key(model.tensors) else of(V)
        keys = KeyWeights(k=of(K), v=v, k_norm=head_norm(K_NORM))
    gate = of(OUTPUT_GATE) if model.facts.family.output_gate else None
    q_norm, sinks = head_norm(Q_NORM), model.sinks(attention)
    stored = None if sinks is None else to_fp16(sinks, tensor_name(attention, SINKS))
    weights = AttentionWeights(of(Q), of(ATTENTION_OUTPUT), keys, q_norm, gate, stored)
    return Attention(attention_plan(plan, attention), weights)
