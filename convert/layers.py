"""What the graph needs of a model's layers: their sizes, and their tensors as stored weights."""

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.attention import AttentionSizes, AttentionWeights
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import LayerPlan, LayerWeights
from anespec.convert.plan import ConversionPlan
from anespec.convert.source.model import LayerTensors, SourceModel
from anespec.convert.weights.stored import DeferredWeight, StoredWeight, store, to_fp16
from anespec.manifests.schema import WeightFormat


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


def layer_weights(model: SourceModel, index: int, weight_format: WeightFormat) -> LayerWeights:
    """Everything that layer `index` holds, its projections in `weight_format`.

    Raises:
        GGUFError: a tensor is not finite or cannot be dequantised.
        UnsupportedModelError: a value is beyond fp16's range.
    """
    names = LayerTensors(index)

    def of(role: str) -> Projection:
        return projection(model, names.weight(role), weight_format, bias=names.bias(role))

    return LayerWeights(
        attention_norm=norm(model, names.weight("attn_norm")),
        attention=AttentionWeights(q=of("attn_q"), k=of("attn_k"), v=of("attn_v"), output=of("attn_output")),
        mlp_norm=norm(model, names.weight("ffn_norm")),
        mlp=MLPWeights(gate=of("ffn_gate"), up=of("ffn_up"), down=of("ffn_down")),
    )


def projection(
    model: SourceModel,
    name: str,
    weight_format: WeightFormat,
    *,
    bias: str | None = None,
    rows: range | None = None,
) -> Projection:
    """The matrix `name`, or some of its rows, and the tensor `bias` where the model has it.

    The matrix is only read when its shard is written; the errors of `layer_weights` come then.

    Raises like `layer_weights`.
    """
    matrix = model.matrix(name, rows)

    def load() -> StoredWeight:
        stored = store(matrix.rows, matrix.shape, weight_format, name)
        model.file.forget(name)
        return stored

    weight = DeferredWeight(matrix.shape, weight_format, load)
    values = model.bias(bias) if bias is not None else None
    return Projection(weight, None if values is None or bias is None else to_fp16(values, bias))


def norm(model: SourceModel, name: str) -> NDArray[np.float16]:
    """A norm's weight, fp16 [d]; raises like `layer_weights`."""
    return to_fp16(model.vector(name), name)
