"""A layer with known weights as a program, and any few lines of MIL as one, for the graph's tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from arrays import ArraySource

from anespec.convert.families.family import Activation
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.functions import ProgramScope, ShardProgram
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.norm import Norm
from anespec.convert.graph.projection import Projection, project
from anespec.convert.graph.shards import (
    LayerPlan,
    LayerShardPlan,
    LayerWeights,
    layer_shard,
)
from anespec.convert.mixers.attention.graph import (
    Attention,
    AttentionPlan,
    AttentionSizes,
    AttentionWeights,
    KeyWeights,
)
from anespec.convert.package import write_package
from anespec.convert.weights.stored import DeferredWeight
from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.schema import (
    MAIN,
    AttentionShape,
    KVCacheGroup,
    KVForm,
    RopeTable,
    ShardFunction,
    StateSpec,
    Target,
    TensorSpec,
    WeightFormat,
)
from anespec.runtime.backends.portable.program import Program as LoadedProgram
from anespec.runtime.backends.portable.program import load_program

EPSILON = 1e-5
D, HEADS, KV_HEADS, HEAD_DIM, FF, SLOTS = 16, 4, 2, 4, 24, 64
POOL = KVCacheGroup(
    name="global", slots=SLOTS, region_slots=SLOTS, mask_input="attn_mask", write_input="kv_write_mask"
)
ROPE = RopeTable(cos_input="rope_cos", sin_input="rope_sin", frequencies=(1.0, 0.1))


def layers(
    shape: AttentionShape,
    indices: range = range(1),
    weight_format: WeightFormat = WeightFormat.FP16,
    kv_heads: int = KV_HEADS,
    rotary_dim: int = HEAD_DIM,
    default_rows: int = 1,
    t_max: int = 128,
    functions: tuple[ShardFunction, ...] = (ShardFunction(name=MAIN),),
    kv_form: KVForm = KVForm.REREAD,
) -> ShardProgram:
    """A shard of tiny random layers."""
    rng = np.random.default_rng(0)

    def projection(rows: int, columns: int) -> Projection:
        values = rng.normal(scale=columns**-0.5, size=(rows, columns)).astype(np.float32)
        return Projection(DeferredWeight(ArraySource(values), weight_format))

    q, kv = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
    norm = Norm(np.ones(D, np.float16))
    sizes = AttentionSizes(HEADS, kv_heads, HEAD_DIM, rotary_dim, shape, HEAD_DIM**-0.5, EPSILON)
    rope = ROPE.model_copy(update={"frequencies": ROPE.frequencies[: rotary_dim // 2]})
    attentions = [AttentionPlan(index, sizes, POOL, rope, rope, index) for index in indices]
    weights = [
        LayerWeights(
            attention_norm=norm,
            mixers=(
                Attention(
                    plan,
                    AttentionWeights(
                        q=projection(q, D),
                        output=projection(D, q),
                        keys=KeyWeights(k=projection(kv, D), v=projection(kv, D)),
                    ),
                ),
            ),
            after_attention_norm=None,
            mlp_norm=norm,
            mlp=MLPWeights(projection(FF, D), projection(FF, D), projection(D, FF)),
            after_mlp_norm=None,
        )
        for plan in attentions
    ]
    plans = tuple(
        LayerPlan(index, (plan,), Activation.SILU, residual_scale=1.0)
        for index, plan in zip(indices, attentions, strict=True)
    )
    plan = LayerShardPlan(plans, D, EPSILON, EPSILON, kv_form)
    return layer_shard(plan, weights, ProgramScope(default_rows, t_max, functions))


def program_of(
    build: Callable[[Mapping[str, Var]], Var],
    inputs: tuple[TensorSpec, ...],
    output: str,
    states: tuple[StateSpec, ...] = (),
) -> ShardProgram:
    """What `build` makes of its inputs, as a shard of its own."""

    def outputs(by_name: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var]:
        return (mb.identity(x=build(by_name), name=output),)

    return ProgramScope(4, 16).program(outputs, inputs, (output,), states)


def projection_of(
    source: ArraySource, weight_format: WeightFormat, target: Target = Target.CPU
) -> ShardProgram:
    """A projection called `y` of `x`, on its own."""
    spec = TensorSpec(name="x", shape=(1, source.shape[1], None, 1))
    weight = Projection(DeferredWeight(source, weight_format, target=target))
    return program_of(lambda inputs: project(inputs["x"], weight, "y"), (spec,), "out")


def reloaded(shard: ShardProgram, folder: Path) -> LoadedProgram:
    """The program after it was written to a folder, made if need be, and loaded."""
    folder.mkdir(exist_ok=True)
    path = folder / "shard.mlpackage"
    write_package(shard, path)
    return load_program(path)
