"""Shards of any size as protobufs, made by the project's own graph code without a single weight."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from anespec.convert.graph.attention import AttentionSizes, AttentionWeights
from anespec.convert.graph.builder import CoreMLProtoExporter, MILProtoExporter, Var, ct, file_value
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import (
    LayerPlan,
    LayerWeights,
    ProgramScope,
    ShardProgram,
    head_shard,
    layer_shard,
)
from anespec.convert.weights.stored import DeferredWeight, StoredWeight
from anespec.manifests.schema import AttentionShape, Pool, RopeTable, WeightFormat
from anespec.validate.residency.shard_view import ArtifactView, ShardView, view_model

BLOCK = 4
NAME = "shards/layers_00_02.mlpackage"


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


def _never() -> StoredWeight:
    raise AssertionError("a view needs no weights")


def _projection(rows: int, columns: int, weights: WeightFormat) -> Projection:
    return Projection(DeferredWeight((rows, columns), weights, _never))


def layers_of(probe: Probe) -> ShardProgram:
    """The program of a layer shard."""
    q, kv = probe.heads * probe.head_dim, probe.kv_heads * probe.head_dim
    norm = np.ones(probe.d, np.float16)

    def projection(rows: int, columns: int) -> Projection:
        return _projection(rows, columns, probe.weights)

    layer = LayerWeights(
        norm,
        AttentionWeights(
            projection(q, probe.d), projection(kv, probe.d), projection(kv, probe.d), projection(probe.d, q)
        ),
        norm,
        MLPWeights(
            projection(probe.ff, probe.d), projection(probe.ff, probe.d), projection(probe.d, probe.ff)
        ),
    )
    pool = Pool(
        name="global",
        slots=probe.slots,
        region_slots=probe.slots,
        mask_input="attn_mask",
        write_input="kv_write_mask",
    )
    frequencies = tuple(1.0 / (i + 1) for i in range(probe.head_dim // 2))
    rope = RopeTable(cos_input="rope_cos", sin_input="rope_sin", frequencies=frequencies)
    sizes = AttentionSizes(probe.heads, probe.kv_heads, probe.head_dim, probe.head_dim, probe.attention)
    plan = LayerPlan(range(probe.layers), sizes, 1e-5, pool, rope)
    return layer_shard(plan, [layer] * probe.layers, probe.d, ProgramScope(BLOCK, BLOCK))


def head_of(channels: int, d: int = 1024) -> ShardProgram:
    """The program of a head shard."""
    projection = _projection(channels, d, WeightFormat.INT8_CHANNEL)
    norm = np.ones(d, np.float16)
    return head_shard(norm, 1e-5, projection, "logits_0", d, ProgramScope(BLOCK, BLOCK))


class _WeightlessExporter(MILProtoExporter):  # type: ignore[misc]
    """coremltools' exporter, except that what would go to the weight file only takes up its place there."""

    offset = 0

    def create_file_value(self, var: Var) -> Any:
        self.offset += 64 * (1 + var.val.size)
        return file_value(var, self.offset, "@model_path/weights/weight.bin")


def model_of(shard: ShardProgram) -> Any:
    """The protobuf of a package, as `write_package` makes it, without its weights."""
    function = shard.program.functions["main"]
    function.set_input_types(tuple(shard.inputs))
    function.set_output_types(shard.outputs)
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
