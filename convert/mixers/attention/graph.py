"""Build attention over the KV state, in either of the two shapes of docs/graph.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import HeadNorm
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.heads import logit_softcap, merge_heads, split_heads
from anespec.convert.graph.kv import KeptRows
from anespec.convert.graph.norm import HEAD, centred, rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.convert.mixers.mixer import ShardVars
from anespec.manifests.channel_layout import ChannelLayout, channel_shape
from anespec.manifests.schema import AttentionShape, Fold, KVCacheGroup, RopeTable

# Rotary position embedding in neox style: the pairs of a head are (i, i + rotary_dim / 2).


def rotate(x: Var, cos: Var, sin: Var, rotary_dim: int, head_dim: int) -> Var:
    """Rotate [1, heads, T, head_dim] by cos and sin [T, rotary_dim / 2]; other dimensions stay unchanged."""
    half, rest = rotary_dim // 2, head_dim - rotary_dim
    sizes = [half, half, rest] if rest else [half, half]
    first, second, *passing = mb.split(x=x, split_sizes=sizes, axis=-1)
    rotated = [
        mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
        mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)),
    ]
    return mb.concat(values=[*rotated, *passing], axis=-1)


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of one layer's attention.

    `scale` multiplies the scores; `rotary_dim` is 0 without rope. `clamp` is the largest magnitude of q, k,
    and v, None if they are not clamped. With `gate_beside_query` the projection of queries has a gate for
    each head behind the head's query. With `gates_heads` a gate has one number for each head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    shape: AttentionShape
    scale: float
    epsilon: float
    head_norm: HeadNorm = HeadNorm.NONE
    norm_values: bool = False
    attention_softcap: float | None = None
    clamp: float | None = None
    gate_beside_query: bool = False
    gates_heads: bool = False

    @property
    def group(self) -> int:
        """The number of query heads per KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class KeyWeights:
    """The weights of a layer's keys and values. Without `v` the values are the output of `k`."""

    k: Projection
    v: Projection | None
    k_norm: NDArray[np.float16] | None = None


@dataclass(frozen=True)
class AttentionWeights:
    """The projections of one layer. Without `keys` it attends to another layer's keys and values.

    With `gate` the heads' outputs are multiplied by its sigmoid. `sinks` (heads,) are scores without values.
    """

    q: Projection
    output: Projection
    keys: KeyWeights | None
    q_norm: NDArray[np.float16] | None = None
    gate: Projection | None = None
    sinks: NDArray[np.float16] | None = None


@dataclass(frozen=True)
class Rotation:
    """Rows of a rope table: cos and sin, [T, rotary_dim / 2] each."""

    cos: Var
    sin: Var


@dataclass(frozen=True)
class AttentionPlan:
    """The sizes of a layer's attention, its pool and rope tables, and the layer whose K/V it attends to."""

    index: int
    sizes: AttentionSizes
    pool: KVCacheGroup
    query_rope: RopeTable | None
    key_rope: RopeTable | None
    kv_layer: int

    @property
    def ropes(self) -> Sequence[RopeTable]:
        """The rope tables that it reads."""
        return [table for table in (self.key_rope, self.query_rope) if table is not None]

    @property
    def pools(self) -> Sequence[KVCacheGroup]:
        """Its only pool."""
        return (self.pool,)

    @property
    def kept(self) -> Sequence[KeptRows]:
        """Its own keys and values; nothing if it attends to another layer's."""
        if self.kv_layer != self.index:
            return ()
        return (KeptRows(self.index, "kv", ((self.sizes.kv_heads, self.sizes.head_dim),) * 2, self.pool),)

    @property
    def fold(self) -> Fold | None:
        """How its state moves on at the end of a chunk: it has none."""
        return None


@dataclass(frozen=True)
class Attention:
    """A layer's attention with its weights; see Mixer."""

    plan: AttentionPlan
    weights: AttentionWeights

    def __call__(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Write the rows' keys and values, and attend to all that the pool's mask shows."""
        plan, weights = self.plan, self.weights.keys
        if weights is not None:
            (kept,) = plan.kept
            rotation = rotation_of(plan.key_rope, shard.by_name)
            written = _write_keys_values(x, weights, plan.sizes, rotation, shard, kept, name)
            shard.slots[plan.index, "kv"] = written
        keys, values = shard.slots[plan.kv_layer, "kv"]
        return _attention(x, self, keys, values, shard, name)


def rotation_of(table: RopeTable | None, by_name: Mapping[str, Var]) -> Rotation | None:
    """Return the rows of a rope table for the rows of the pass; None without a table."""
    return None if table is None else Rotation(by_name[table.cos_input], by_name[table.sin_input])


def _write_keys_values(
    x: Var,
    weights: KeyWeights,
    sizes: AttentionSizes,
    rope: Rotation | None,
    shard: ShardVars,
    kept: KeptRows,
    name: str,
) -> tuple[Var, Var]:
    """Compute keys and values from a channel tensor and write them into their slots; return all slots."""
    projected = _clamped(project(x, weights.k, f"{name}_k"), sizes.clamp)
    k = _heads(projected, sizes.kv_heads, weights.k_norm, rope, sizes, f"{name}_k")
    v = projected if weights.v is None else _clamped(project(x, weights.v, f"{name}_v"), sizes.clamp)
    v = split_heads(v, sizes.kv_heads, sizes.head_dim)
    if sizes.norm_values:
        v = rms_norm(v, None, sizes.epsilon, f"{name}_v_norm", HEAD)
    return shard.write(kept, 0, k, f"{name}_keys"), shard.write(kept, 1, v, f"{name}_values")


def _attention(x: Var, whole: Attention, keys: Var, values: Var, shard: ShardVars, name: str) -> Var:
    """Compute queries from a channel tensor, attend to the written K/V, and apply the output projection."""
    weights, plan, sizes = whole.weights, whole.plan, whole.plan.sizes
    rope = rotation_of(plan.query_rope, shard.by_name)
    projected, gate = project(x, weights.q, f"{name}_q"), None
    if sizes.gate_beside_query:
        projected, gate = _split_gate(projected, sizes, shard.layout)
    projected = _clamped(projected, sizes.clamp)
    q = _heads(projected, sizes.heads, weights.q_norm, rope, sizes, f"{name}_q")
    if sizes.scale != 1:
        q = mb.mul(x=q, y=np.float16(sizes.scale))
    mixed = attend(q, keys, values, shard.by_name[plan.pool.mask_input], sizes, weights.sinks)
    if weights.gate is not None and sizes.gates_heads:
        by_head = split_heads(project(x, weights.gate, f"{name}_output_gate"), sizes.heads, 1)
        mixed = mb.mul(x=mixed, y=mb.sigmoid(x=by_head))
    mixed = merge_heads(mixed, shard.layout)
    if weights.gate is not None and not sizes.gates_heads:
        gate = project(x, weights.gate, f"{name}_output_gate")
    if gate is not None:
        mixed = mb.mul(x=mixed, y=mb.sigmoid(x=gate))
    return project(mixed, weights.output, f"{name}_output")


def _split_gate(projected: Var, sizes: AttentionSizes, layout: ChannelLayout) -> tuple[Var, Var]:
    """Split a channel tensor of a query and a gate for each head into one of queries and one of gates."""
    both = mb.reshape(x=projected, shape=(sizes.heads, 2, sizes.head_dim, -1))
    shape = channel_shape(sizes.heads * sizes.head_dim, -1, layout)
    query, gate = (mb.reshape(x=part, shape=shape) for part in mb.split(x=both, num_splits=2, axis=1))
    return query, gate


def _clamped(x: Var, clamp: float | None) -> Var:
    """Return x between -clamp and clamp; the graph has a maximum but no minimum, so signs are turned."""
    if clamp is None:
        return x
    limit = np.float16(-clamp)
    turned = mb.mul(x=mb.maximum(x=x, y=limit), y=np.float16(-1))
    return mb.mul(x=mb.maximum(x=turned, y=limit), y=np.float16(-1))


def _heads(
    projected: Var,
    heads: int,
    norm: NDArray[np.float16] | None,
    rope: Rotation | None,
    sizes: AttentionSizes,
    name: str,
) -> Var:
    """Split heads * head_dim channels into [1, heads, T, head_dim]; normalise and rotate them."""
    if norm is not None and sizes.head_norm is HeadNorm.ALL_HEADS:
        projected = rms_norm(projected, norm, sizes.epsilon, f"{name}_norm")
    x = split_heads(projected, heads, sizes.head_dim)
    if norm is not None and sizes.head_norm is HeadNorm.BEFORE_ROPE:
        x = rms_norm(x, norm, sizes.epsilon, f"{name}_norm", HEAD)
    if norm is not None and sizes.head_norm is HeadNorm.LAYER_BEFORE_ROPE:
        unit = rms_norm(centred(x, HEAD), None, sizes.epsilon, f"{name}_unit", HEAD)
        x = mb.mul(x=unit, y=norm.reshape(1, heads, 1, sizes.head_dim), name=f"{name}_norm")
    if rope is not None:
        x = rotate(x, rope.cos, rope.sin, sizes.rotary_dim, sizes.head_dim)
    if norm is not None and sizes.head_norm is HeadNorm.AFTER_ROPE:
        x = rms_norm(x, norm, sizes.epsilon, f"{name}_norm", HEAD)
    return x


def _masked(scores: Var, mask: Var, sizes: AttentionSizes) -> Var:
    capped = scores if sizes.attention_softcap is None else logit_softcap(scores, sizes.attention_softcap)
    return mb.add(x=capped, y=mask)


def _share_of_values(scores: Var, weights: Var, sinks: NDArray[np.float16]) -> Var:
    """Return how much of a softmax is left beside sinks, [..., T, 1], from the softmax without them.

    `sinks` can be broadcast. With the largest score m and its weight w the sum of exponentials is
    exp(m) / w, so the share is 1 / (1 + w exp(sink - m)); two sigmoids keep exp from overflowing. A maximum
    does not depend on the order of slots, as a longer sum could.
    """
    above = mb.sub(x=mb.reduce_max(x=scores, axes=[-1], keep_dims=True), y=sinks)
    kept = mb.sigmoid(x=above)
    lost = mb.sigmoid(x=mb.mul(x=above, y=np.float16(-1)))
    lost = mb.mul(x=lost, y=mb.reduce_max(x=weights, axes=[-1], keep_dims=True))
    return mb.real_div(x=kept, y=mb.add(x=kept, y=lost))


def attend(
    q: Var,
    keys: Var,
    values: Var,
    mask: Var,
    sizes: AttentionSizes,
    sinks: NDArray[np.float16] | None = None,
) -> Var:
    """Attend with scaled queries [1, heads, T, head_dim] to K and V of all slots; return the same shape.

    The scores are softly bounded and masked; `sinks` (heads,) are scores without values.
    """
    whole = _attend_grouped if sizes.shape is AttentionShape.GROUPED else _attend_per_kv_head
    return whole(q, keys, values, mask, sizes, sinks)


def _attend_per_kv_head(
    q: Var,
    keys: Var,
    values: Var,
    mask: Var,
    sizes: AttentionSizes,
    sinks: NDArray[np.float16] | None,
) -> Var:
    """Attend with one broadcast matmul for each KV head, over slices of q, K and V."""
    queries = mb.split(x=q, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [q]
    keys_of = mb.split(x=keys, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [keys]
    values_of = mb.split(x=values, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [values]
    mixed = []
    for number, (query, key, value) in enumerate(zip(queries, keys_of, values_of, strict=True)):
        scores = _masked(mb.matmul(x=query, y=key, transpose_y=True), mask, sizes)
        weights = mb.softmax(x=scores, axis=-1)
        found = mb.matmul(x=weights, y=value)
        if sinks is not None:
            own = sinks[number * sizes.group : (number + 1) * sizes.group].reshape(1, -1, 1, 1)
            found = mb.mul(x=found, y=_share_of_values(scores, weights, own))
        mixed.append(found)
    return mb.concat(values=mixed, axis=1) if len(mixed) > 1 else mixed[0]


def _attend_grouped(
    q: Var,
    keys: Var,
    values: Var,
    mask: Var,
    sizes: AttentionSizes,
    sinks: NDArray[np.float16] | None,
) -> Var:
    """Attend with one matmul for all heads: the query heads of a group are rows of the same matrix."""
    slots = keys.shape[2]
    rows = mb.reshape(x=q, shape=(1, sizes.kv_heads, -1, sizes.head_dim))
    scores = mb.matmul(x=rows, y=keys, transpose_y=True)
    scores = mb.reshape(x=scores, shape=(sizes.kv_heads, sizes.group, -1, slots))
    scores = _masked(scores, mask, sizes)
    weights = by_head = mb.softmax(x=scores, axis=-1)
    weights = mb.reshape(x=weights, shape=(1, sizes.kv_heads, -1, slots))
    mixed = mb.matmul(x=weights, y=values)
    if sinks is not None:
        share = _share_of_values(scores, by_head, sinks.reshape(sizes.kv_heads, sizes.group, 1, 1))
        mixed = mb.mul(x=mixed, y=mb.reshape(x=share, shape=(1, sizes.kv_heads, -1, 1)))
    return mb.reshape(x=mixed, shape=(1, sizes.heads, -1, sizes.head_dim))
