"""Prepare a model's layers for the graph: their plans, and their tensors as weights to store."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import NormKind
from anespec.convert.graph.experts import (
    LatentExperts,
    MixturePlan,
    MixtureWeights,
    NormsApart,
    SharedExpert,
    WideExperts,
)
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.norm import Norm
from anespec.convert.graph.per_layer import PerLayerMix, PerLayerWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import HeadPlan, LayerPlan, LayerShardPlan, LayerWeights
from anespec.convert.mixers.registry import MIXERS
from anespec.convert.mixers.tensors import bias_name, tensor_name
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.topology import head_slices
from anespec.convert.source.experts import (
    AFTER_EXPERTS_NORM,
    AFTER_SHARED_NORM,
    EXPERT_DOWN,
    EXPERT_GATE,
    EXPERT_UP,
    EXPERTS_NORM,
    LATENT_IN,
    LATENT_OUT,
    ROUTER,
    SELECTION_BIAS,
    SHARED_SWITCH,
    MixtureFacts,
    dense_roles,
    expert_role,
    scale_name,
)
from anespec.convert.source.facts import (
    FeedForwardFacts,
    LayerFacts,
)
from anespec.convert.source.matrix import kind_and_number
from anespec.convert.source.model import (
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    LAYER_SCALE,
    OUTPUT,
    PER_LAYER_NORM,
    PER_LAYER_PROJECTION,
    Matrix,
    SourceModel,
)
from anespec.convert.weights.encoding import to_fp16
from anespec.convert.weights.stored import DeferredWeight
from anespec.convert.weights.vectors import fp16_vector
from anespec.manifests.schema import ExpertForm, StoredTensor, Target
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
        branch_epsilon=facts.family.branch_epsilon or facts.epsilon,
        kv_form=plan.kv_form,
        per_layer_width=facts.per_layer_width,
        hidden_scale=plan.hidden_scale,
    )


def _layer_plan(plan: ConversionPlan, layer: LayerFacts) -> LayerPlan:
    return LayerPlan(
        index=layer.index,
        mixers=tuple(MIXERS[type(mixer)].plan(plan, mixer) for mixer in layer.mixers),
        activation=None if layer.mlp is None else layer.mlp.activation,
        residual_scale=plan.model.facts.residual_scale,
    )


def _routing(plan: ConversionPlan, facts: MixtureFacts) -> MixturePlan:
    """Return a mixture's plan for the target; a Neural Engine has no truth values."""
    return MixturePlan(
        experts=facts.experts,
        used=facts.used,
        gating=facts.gating,
        renormalised=facts.renormalised,
        scale=facts.scale,
        arithmetic=plan.options.target is not Target.CPU,
    )


def head_plan(plan: ConversionPlan) -> HeadPlan:
    """Return the plan of the output layer."""
    facts = plan.model.facts
    hidden_epsilon = facts.epsilon * plan.hidden_scale**2
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
        kind, _ = kind_and_number(role)
        weight = _weight(plan, model.layer_matrix(layer, role), kind, on_stored)
        return Projection(weight, _bias(model.layer_bias(layer, role), weight.source.name))

    def of_all(kind: str) -> Projection:
        """Return a projection of all experts of a layer in one."""
        return Projection(_weight(plan, model.matrix(tensor_name(layer, kind)), kind, on_stored))

    def norm_of(role: str | None, scale: float = 1.0) -> Norm | None:
        return None if role is None else hidden_norm(model, model.norm_tensor(layer, role), scale)

    def mlp_of(roles: Sequence[str]) -> MLPWeights:
        *gate, up, down = map(of, roles)
        return MLPWeights(gate[0] if gate else None, up, down)

    def feed_forward(facts: FeedForwardFacts) -> MLPWeights | MixtureWeights:
        if not isinstance(facts, MixtureFacts):
            return mlp_of(dense_roles(model.facts.family.gated))
        bias, shared = model.selection_bias(layer), None
        if facts.shared_width:
            gate = of(SHARED_SWITCH) if facts.shared_gate else None
            shared = SharedExpert(mlp_of(facts.shared_roles), gate)
        scales = model.expert_scales(layer)
        numbers = range(facts.experts)
        experts: Sequence[MLPWeights] | WideExperts = [
            mlp_of([expert_role(kind, number) for kind in facts.expert_roles]) for number in numbers
        ]
        if plan.experts is not None and plan.experts.form is ExpertForm.WIDE:
            downs = [of(expert_role(EXPERT_DOWN, number)) for number in numbers]
            gates = of_all(EXPERT_GATE) if facts.gated else None
            experts = WideExperts(gates, of_all(EXPERT_UP), downs)
        return MixtureWeights(
            plan=_routing(plan, facts),
            router=of(ROUTER),
            experts=experts,
            selection_bias=None if bias is None else to_fp16(bias, tensor_name(layer, SELECTION_BIAS)),
            shared=shared,
            expert_scales=None if scales is None else to_fp16(scales, scale_name(layer.index, EXPERT_DOWN)),
            apart=_norms_apart(model, layer) if facts.apart else None,
            latent=LatentExperts(of(LATENT_IN), of(LATENT_OUT)) if facts.latent else None,
        )

    norms, per_layer = model.norms(layer), None
    # The output of a norm after attention, MLP or the layer's own input is added to the scaled hidden state.
    scale = plan.hidden_scale
    if model.facts.per_layer_width:
        own_norm = fp16_vector(model, tensor_name(layer, INPUT_NORM), scale)
        per_layer = PerLayerWeights(of(INPUT_GATE), of(INPUT_PROJECTION), own_norm)
    return LayerWeights(
        attention_norm=norm_of(norms.attention),
        mixers=tuple(MIXERS[type(mixer)].mixer(plan, mixer, of) for mixer in layer.mixers),
        after_attention_norm=norm_of(norms.after_attention, scale),
        mlp_norm=norm_of(norms.mlp),
        mlp=None if layer.mlp is None else feed_forward(layer.mlp),
        after_mlp_norm=norm_of(norms.after_mlp, scale),
        per_layer=per_layer,
        output_scale=_output_scale(model, layer),
        parallel=model.is_parallel(layer),
    )


def _norms_apart(model: SourceModel, layer: LayerFacts) -> NormsApart:
    name = scale_name(layer.index, ROUTER)
    router = to_fp16(model.vector(name) / np.float32(math.sqrt(model.facts.hidden_size)), name)
    roles = (EXPERTS_NORM, AFTER_EXPERTS_NORM, AFTER_SHARED_NORM)
    return NormsApart(Norm(router), *(hidden_norm(model, tensor_name(layer, role)) for role in roles))


def _output_scale(model: SourceModel, layer: LayerFacts) -> float | None:
    name = tensor_name(layer, LAYER_SCALE)
    return float(fp16_vector(model, name)[0]) if name in model.file.tensors else None


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
        fp16_vector(model, PER_LAYER_NORM),
        model.facts.hidden_size,
        plan.hidden_scale,
    )


def head_weights(
    plan: ConversionPlan, tokens: range, on_stored: OnStored = lambda _: None
) -> dict[str, Projection]:
    """Return rows `tokens` of the output projection in slices, by the names of their logits.

    Raises like `layer_weights`.
    """
    model, bias = plan.model, plan.model.bias(OUTPUT)
    return {
        f"logits_{part.start}": Projection(
            _weight(plan, model.matrix(model.head_tensor, part), HEAD, on_stored),
            _bias(None if bias is None else bias[part.start : part.stop], OUTPUT),
        )
        for part in head_slices(tokens)
    }


def _bias(values: NDArray[np.float32] | None, weight: str) -> NDArray[np.float16] | None:
    return None if values is None else to_fp16(values, bias_name(weight))


def hidden_norm(model: SourceModel, name: str, scale: float = 1.0) -> Norm:
    """Return a norm over the hidden state, of the family's kind, its output times `scale`.

    A norm with a bias or without a weight is never scaled (see Family). Raises like `layer_weights`.
    """
    kind = model.facts.family.norm_kind
    if kind is NormKind.LAYER_WEIGHTLESS:
        return Norm(None, centred=True)
    return Norm(
        weight=fp16_vector(model, name, scale),
        bias=_bias(model.bias(name), name),
        centred=kind is NormKind.LAYER,
    )
