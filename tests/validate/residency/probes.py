"""Shards of any size as protobufs, made by the project's own graph code without a single weight."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from arrays import ArraySource

from anespec.convert.families.family import Activation
from anespec.convert.graph.builder import CoreMLProtoExporter, MILProtoExporter, Var, ct, file_value
from anespec.convert.graph.functions import ProgramScope, ShardProgram
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.norm import Norm
from anespec.convert.graph.placeholder import Placeholder
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import (
    HeadPlan,
    LayerPlan,
    LayerShardPlan,
    LayerWeights,
    head_shard,
    layer_shard,
)
from anespec.convert.mixers.attention.graph import (
    Attention,
    AttentionPlan,
    AttentionSizes,
    AttentionWeights,
    KeyWeights,
)
from anespec.convert.weights.stored import DeferredWeight
from anespec.manifests.schema import AttentionShape, KVCacheGroup, KVForm, RopeTable, WeightFormat
from anespec.validate.residency.shard_view import ArtifactView, ShardView, view_model

BLOCK = 4
EPSILON = 1e-5
NAME = "shards/layers_00_01.mlpackage"


@dataclass(frozen=True)
class Probe:
    """Sizes of a shard; the defaults are healthy: about 18 MB at int8."""

    d: int = 1024
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 64
    ff: int = 2048
    slots: int = 256
    layers: int = 2
    weights: WeightFormat = WeightFormat.INT8_CHANNEL
    attention: AttentionShape = AttentionShape.PER_KV_HEAD
    kv_form: KVForm = KVForm.SLICE_UPDATE


def _projection(rows: int, columns: int, weights: WeightFormat) -> Projection:
    """A projection whose weight takes no memory, and is never asked for."""
    values = np.broadcast_to(np.float32(0), (rows, columns))
    return Projection(DeferredWeight(ArraySource(values), weights))


def layers_of(probe: Probe) -> ShardProgram:
    """The program of a layer shard."""
    q, kv = probe.heads * probe.head_dim, probe.kv_heads * probe.head_dim
    norm = Norm(np.ones(probe.d, np.float16))

    def projection(rows: int, columns: int) -> Projection:
        return _projection(rows, columns, probe.weights)

    pool = KVCacheGroup(
        name="global",
        slots=probe.slots,
        region_slots=probe.slots,
        mask_input="attn_mask",
        write_input="kv_write_mask",
    )
    frequencies = tuple(1.0 / (i + 1) for i in range(probe.head_dim // 2))
    rope = RopeTable(cos_input="rope_cos", sin_input="rope_sin", frequencies=frequencies)
    sizes = AttentionSizes(
        heads=probe.heads,
        kv_heads=probe.kv_heads,
        head_dim=probe.head_dim,
        rotary_dim=probe.head_dim,
        shape=probe.attention,
        scale=probe.head_dim**-0.5,
        epsilon=EPSILON,
    )
    attentions = [AttentionPlan(index, sizes, pool, rope, rope, index) for index in range(probe.layers)]
    weights = AttentionWeights(
        q=projection(q, probe.d),
        output=projection(probe.d, q),
        keys=KeyWeights(k=projection(kv, probe.d), v=projection(kv, probe.d)),
    )
    mlp = MLPWeights(
        projection(probe.ff, probe.d), projection(probe.ff, probe.d), projection(probe.d, probe.ff)
    )
    layers = [LayerWeights(norm, (Attention(plan, weights),), None, norm, mlp, None) for plan in attentions]
    plans = tuple(LayerPlan(plan.index, (plan,), Activation.SILU, 1.0) for plan in attentions)
    return layer_shard(
        LayerShardPlan(plans, probe.d, EPSILON, EPSILON, probe.kv_form), layers, ProgramScope(1, BLOCK)
    )


def head_of(channels: int, d: int = 1024) -> ShardProgram:
    """The program of a head shard."""
    projection = _projection(channels, d, WeightFormat.INT8_CHANNEL)
    norm = Norm(np.ones(d, np.float16))
    plan = HeadPlan(d, EPSILON, scale=1.0, softcap=None)
    return head_shard(plan, norm, {"logits_0": projection}, ProgramScope(1, BLOCK))


class _WeightlessExporter(MILProtoExporter):  # type: ignore[misc]
    """coremltools' exporter, except that what would go to the weight file only takes up its place there."""

    offset = 0

    def get_milproto_value(self, var: Var) -> Any:
        if not isinstance(var.val, Placeholder):
            return super().get_milproto_value(var)
        return self.create_file_value(var)

    def create_file_value(self, var: Var) -> Any:
        self.offset += 64 * (1 + var.val.size)
        return file_value(var, self.offset, "@model_path/weights/weight.bin")


def model_of(shard: ShardProgram) -> Any:
    """The protobuf of a package, as `write_package` makes it, without its weights."""
    version = int(ct.target.iOS18)
    program = _WeightlessExporter(shard.program, "unused", version).export()
    described = CoreMLProtoExporter(
        shard.program, program, None, None, None, "mlprogram", "milinternal", version
    )
    return described.export(version)


def view_of(shard: ShardProgram, is_head: bool = False) -> ShardView:
    """What rules see of a program."""
    return view_model(model_of(shard), NAME, "0" * 64, BLOCK, is_head)


def alone(view: ShardView) -> ArtifactView:
    """An artifact of one shard."""
    return ArtifactView((view,))
