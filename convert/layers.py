"""Prepare a model's layers for the graph: their plans, and their tensors as weights to store."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import WeightlessNorm
from anespec.convert.graph.attention import AttentionSizes, AttentionWeights, KeyWeights
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.per_layer import PerLayerMix, PerLayerWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import HeadPlan, LayerPlan, LayerShardPlan, LayerWeights
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.topology import head_slices
from anespec.convert.source.facts import LayerFacts
from anespec.convert.source.model import (
    ATTENTION_OUTPUT,
    DOWN,
    GATE,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    K_NORM,
    LAYER_SCALE,
    PER_LAYER_NORM,
    PER_LAYER_PROJECTION,
    Q_NORM,
    UP,
    K,
    Matrix,
    Q,
    SourceModel,
    V,
    bias_name,
    tensor_name,
)
from anespec.convert.weights.encoding import to_fp16
from anespec.convert.weights.stored import DeferredWeight
from anespec.manifests.schema import StoredTensor
from anespec.manifests.weight_choice import HEAD, PER_LAYER

OnStored = Callable[[StoredTensor], None]
"""A callback that gets the description of each projection when it is stored, as its shard is written."""


def layer_shard_plan(plan: ConversionPlan, indices: Sequence[int]) -> LayerShardPlan:
    """Return the plan of a shard's layers: sizes, pools and rope tables."""
    facts = plan.model.facts
    return LayerShardPlan(
        layers=tuple(_layer_plan(plan, facts.layers[index]) for index in indices),
        hidden_size=facts.hidden_size,
        epsilon=facts.epsilon,
        kv_form=plan.kv_form,
        per_layer_width=facts.per_layer_width,
        hidden_scale=facts.family.hidden_scale,
    )


def _layer_plan(plan: ConversionPlan, layer: LayerFacts) -> LayerPlan:
    facts = plan.model.facts
    query_rope, key_rope = plan.ropes_of(layer)
    return LayerPlan(
        index=layer.index,
        sizes=AttentionSizes(
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            head_dim=layer.head_dim,
            rotary_dim=layer.rotary_dim,
            shape=plan.attention,
            scale=layer.scale,
            epsilon=facts.epsilon,
            head_norm=facts.family.head_norm,
            norm_values=facts.family.value_norm is WeightlessNorm.EACH_HEAD,
            attention_softcap=facts.attention_softcap,
        ),
        pool=plan.pool_of(layer),
        query_rope=query_rope,
        key_rope=key_rope,
        kv_layer=layer.kv_layer,
        activation=facts.family.activation,
        residual_scale=facts.residual_scale,
    )


def head_plan(plan: ConversionPlan) -> HeadPlan:
    """Return the plan of the output layer."""
    facts = plan.model.facts
    hidden_epsilon = facts.epsilon * facts.family.hidden_scale**2
    return HeadPlan(
        facts.hidden_size, hidden_epsilon, facts.logit_scale, facts.logit_softcap, plan.head_outputs
    )


def _weight(plan: ConversionPlan, matrix: Matrix, kind: str, on_stored: OnStored) -> DeferredWeight:
    return DeferredWeight(matrix, plan.options.weights.format_of(kind), on_stored, plan.options.target)


def layer_weights(
    plan: ConversionPlan, layer: LayerFacts, on_stored: OnStored = lambda _: None
) -> LayerWeights:
    """Return the weights of a layer, with projections in the weight formats of the options.

    Projections are read and stored only when the shard is written, and raise their errors then.

    Raises:
        GGUFError: a tensor is not finite or cannot be dequantised.
        UnsupportedModelError: a value is beyond fp16's range.
    """
    model = plan.model

    def of(role: str) -> Projection:
        weight = _weight(plan, model.layer_matrix(layer, role), role, on_stored)
        bias = model.layer_bias(layer, role)
        return Projection(weight, None if bias is None else to_fp16(bias, bias_name(weight.source.name)))

    def norm_before(role: str | None) -> NDArray[np.float16] | None:
        return None if role is None else norm(model, tensor_name(layer, role))

    def norm_after(role: str | None) -> NDArray[np.float16] | None:
        """Return the weight of a norm whose output is added to the hidden state, times `hidden_scale`."""
        if role is None:
            return None
        name = tensor_name(layer, role)
        return to_fp16(model.vector(name) * np.float32(model.facts.family.hidden_scale), name)

    def head_norm(role: str) -> NDArray[np.float16] | None:
        if role not in model.head_norms(layer):
            return None
        return to_fp16(model.head_norm(layer, role), tensor_name(layer, role))

    norms, keys, per_layer = model.facts.family.norms, None, None
    if layer.owns_kv:
        keys = KeyWeights(k=of(K), v=None if model.value_is_key(layer) else of(V), k_norm=head_norm(K_NORM))
    if model.facts.per_layer_width and (own_norm := norm_after(INPUT_NORM)) is not None:
        per_layer = PerLayerWeights(of(INPUT_GATE), of(INPUT_PROJECTION), own_norm)
    return LayerWeights(
        attention_norm=norm_before(norms.attention),
        attention=AttentionWeights(q=of(Q), output=of(ATTENTION_OUTPUT), keys=keys, q_norm=head_norm(Q_NORM)),
        after_attention_norm=norm_after(norms.after_attention),
        mlp_norm=norm_before(norms.mlp),
        mlp=MLPWeights(gate=of(GATE), up=of(UP), down=of(DOWN)),
        after_mlp_norm=norm_after(norms.after_mlp),
        per_layer=per_layer,
        output_scale=_output_scale(model, layer),
    )


def _output_scale(model: SourceModel, layer: LayerFacts) -> float | None:
    name = tensor_name(layer, LAYER_SCALE)
    return float(norm(model, name)[0]) if name in model.file.tensors else None


def per_layer_mix(
    plan: ConversionPlan, indices: range, on_stored: OnStored = lambda _: None
) -> PerLayerMix | None:
    """Return the weights that mix consecutive layers' own inputs; None if the model has none."""
    model = plan.model
    width = model.facts.per_layer_width
    if not width:
        return None
    rows = model.matrix(PER_LAYER_PROJECTION, range(indices.start * width, indices.stop * width))
    weight = _weight(plan, rows, PER_LAYER, on_stored)
    return PerLayerMix(
        Projection(weight),
        norm(model, PER_LAYER_NORM),
        model.facts.hidden_size,
        model.facts.family.hidden_scale,
    )


def head_weights(
    plan: ConversionPlan, tokens: range, on_stored: OnStored = lambda _: None
) -> dict[str, Projection]:
    """Return rows `tokens` of the output projection in slices, by the names of their logits.

    Raises like `layer_weights`.
    """
    return {
        f"logits_{part.start}": Projection(
            _weight(plan, plan.model.matrix(plan.model.head_tensor, part), HEAD, on_stored)
        )
        for part in head_slices(tokens)
    }


def norm(model: SourceModel, name: str) -> NDArray[np.float16]:
    """Return a norm's weight, fp16; raises like `layer_weights`."""
    return to_fp16(model.vector(name), name)
