"""What the graph needs of a model's layers: their sizes, and their tensors as stored weights."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.attention import AttentionSizes, AttentionWeights
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import LayerPlan, LayerWeights
from anespec.convert.plan import ConversionPlan
from anespec.convert.source.model import LayerTensors, SourceModel
from anespec.convert.weights.encoding import to_fp16
from anespec.convert.weights.stored import DeferredWeight
from anespec.manifests.schema import StoredTensor
from anespec.manifests.weight_choice import HEAD, WeightChoice


def layer_plan(plan: ConversionPlan, indices: range) -> LayerPlan:
    """The sizes, pool and rope table of consecutive layers."""
    model, sizes = plan.model, plan.model.sizes
    attention = AttentionSizes(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        rotary_dim=model.rotary_dim,
        shape=plan.attention,
    )
    return LayerPlan(indices, attention, sizes.norm_epsilon, plan.pool, model.rope)


OnStored = Callable[[StoredTensor], None]
"""Told what became of a projection when it is stored, which is when its shard is written."""


def layer_weights(
    model: SourceModel, index: int, weights: WeightChoice, on_stored: OnStored = lambda _: None
) -> LayerWeights:
    """Everything that layer `index` holds, its projections in the formats of `weights`.

    Raises:
        GGUFError: a tensor is not finite or cannot be dequantised.
        UnsupportedModelError: a value is beyond fp16's range.
    """
    names = LayerTensors(index)

    def of(role: str) -> Projection:
        weight = DeferredWeight(model.matrix(names.weight(role)), weights.format_of(role), on_stored)
        return projection(model, weight, names.bias(role))

    return LayerWeights(
        attention_norm=norm(model, names.weight("attn_norm")),
        attention=AttentionWeights(q=of("attn_q"), k=of("attn_k"), v=of("attn_v"), output=of("attn_output")),
        mlp_norm=norm(model, names.weight("ffn_norm")),
        mlp=MLPWeights(gate=of("ffn_gate"), up=of("ffn_up"), down=of("ffn_down")),
    )


def head_weights(
    model: SourceModel, tokens: range, weights: WeightChoice, on_stored: OnStored = lambda _: None
) -> Projection:
    """Rows `tokens` of the output projection; raises like `layer_weights`."""
    matrix = model.matrix(model.head_tensor, tokens)
    return Projection(DeferredWeight(matrix, weights.format_of(HEAD), on_stored))


def projection(model: SourceModel, weight: DeferredWeight, bias: str) -> Projection:
    """A weight with the tensor `bias`, where the model has it.

    The weight is only read when its shard is written; the errors of `layer_weights` come then.
    """
    values = model.bias(bias)
    return Projection(weight, None if values is None else to_fp16(values, bias))


def norm(model: SourceModel, name: str) -> NDArray[np.float16]:
    """A norm's weight, fp16 [d]; raises like `layer_weights`."""
    return to_fp16(model.vector(name), name)
