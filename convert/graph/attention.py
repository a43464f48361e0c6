"""Build attention over the KV state, in either of the two shapes of docs/graph.md."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import HeadNorm
from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.kv import LayerCells, UpdatedSlots
from anespec.convert.graph.norm import HEAD, rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.manifests.channel_layout import ChannelLayout, channel_shape
from anespec.manifests.schema import AttentionShape, KVForm


def logit_softcap(x: Var, cap: float) -> Var:
    """Return cap * tanh(x / cap), elementwise."""
    bounded = mb.tanh(x=mb.mul(x=x, y=np.float16(1 / cap)))
    return mb.mul(x=bounded, y=np.float16(cap))


# Rotary position embedding in neox style: the pairs of a head are (i, i + rotary_dim / 2).


def rotate(x: Var, cos: Var, sin: Var, rotary_dim: int, head_dim: int) -> Var:
    """Rotate [1, heads, T, head_dim] by cos and sin [T, rotary_dim / 2]; other dimensions stay unchanged."""
    half, rest = rotary_dim // 2, head_dim - rotary_dim
    sizes = [half, half, rest] if rest else [half, half]
    first, second, *passing = mb.split(x=x, split_sizes=sizes, axis=-1)
    turned = [
        mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
        mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)),
    ]
    return mb.concat(values=[*turned, *passing], axis=-1)


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of one layer's attention. `scale` multiplies the scores; `rotary_dim` is 0 without rope."""

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
    """The projections of one layer. Without `keys` it attends to another layer's keys and values."""

    q: Projection
    output: Projection
    keys: KeyWeights | None
    q_norm: NDArray[np.float16] | None = None


@dataclass(frozen=True)
class Rotation:
    """Rows of a rope table: cos and sin, [T, rotary_dim / 2] each."""

    cos: Var
    sin: Var


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a layer besides the hidden state: rope rows, its pool's mask, and the slots to write.

    `layout` is the layout of channel tensors in the function.
    """

    query_rope: Rotation | None
    key_rope: Rotation | None
    attn_mask: Var
    homes: kv.Homes
    layout: ChannelLayout


@dataclass(frozen=True)
class WrittenKV:
    """K and V of one layer after the pass's rows have been written."""

    k: UpdatedSlots
    v: UpdatedSlots


def write_keys_values(
    x: Var,
    weights: KeyWeights,
    sizes: AttentionSizes,
    inputs: LayerInputs,
    cells: LayerCells,
    form: KVForm,
    name: str,
) -> WrittenKV:
    """Compute keys and values from a channel tensor and write them into their slots."""
    projected = project(x, weights.k, f"{name}_k")
    k = _heads(projected, sizes.kv_heads, weights.k_norm, inputs.key_rope, sizes, f"{name}_k")
    v = projected if weights.v is None else project(x, weights.v, f"{name}_v")
    v = _split_heads(v, sizes.kv_heads, sizes.head_dim)
    if sizes.norm_values:
        v = rms_norm(v, None, sizes.epsilon, f"{name}_v_norm", HEAD)
    return WrittenKV(
        k=kv.write(cells.k, k, inputs.homes, form, f"{name}_keys"),
        v=kv.write(cells.v, v, inputs.homes, form, f"{name}_values"),
    )


def attention(
    x: Var,
    weights: AttentionWeights,
    sizes: AttentionSizes,
    inputs: LayerInputs,
    written: WrittenKV,
    name: str,
) -> Var:
    """Compute queries from a channel tensor, attend to the written K/V, and apply the output projection."""
    projected = project(x, weights.q, f"{name}_q")
    q = _heads(projected, sizes.heads, weights.q_norm, inputs.query_rope, sizes, f"{name}_q")
    if sizes.scale != 1:
        q = mb.mul(x=q, y=np.float16(sizes.scale))
    attend = _attend_grouped if sizes.shape is AttentionShape.GROUPED else _attend_per_kv_head
    mixed = attend(q, written.k.slots, written.v.slots, inputs.attn_mask, sizes)
    return project(merge_heads(mixed, sizes, inputs.layout), weights.output, f"{name}_output")


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
    x = _split_heads(projected, heads, sizes.head_dim)
    if norm is not None and sizes.head_norm is HeadNorm.BEFORE_ROPE:
        x = rms_norm(x, norm, sizes.epsilon, f"{name}_norm", HEAD)
    if rope is not None:
        x = rotate(x, rope.cos, rope.sin, sizes.rotary_dim, sizes.head_dim)
    if norm is not None and sizes.head_norm is HeadNorm.AFTER_ROPE:
        x = rms_norm(x, norm, sizes.epsilon, f"{name}_norm", HEAD)
    return x


def _split_heads(x: Var, heads: int, head_dim: int) -> Var:
    """Split heads * head_dim channels into [1, heads, T, head_dim]."""
    return mb.transpose(x=mb.reshape(x=x, shape=(1, heads, head_dim, -1)), perm=[0, 1, 3, 2])


def merge_heads(x: Var, sizes: AttentionSizes, layout: ChannelLayout) -> Var:
    """Merge [1, heads, T, head_dim] into a channel tensor of heads * head_dim channels.

    For T > 1 this needs a transpose to [heads, head_dim, T] first; for T = 1 a reshape alone would do.
    """
    channels = mb.transpose(x=x, perm=[0, 1, 3, 2])
    return mb.reshape(x=channels, shape=channel_shape(sizes.heads * sizes.head_dim, -1, layout))


def _masked(scores: Var, mask: Var, sizes: AttentionSizes) -> Var:
    capped = scores if sizes.attention_softcap is None else logit_softcap(scores, sizes.attention_softcap)
    return mb.add(x=capped, y=mask)


def _attend_per_kv_head(q: Var, keys: Var, values: Var, mask: Var, sizes: AttentionSizes) -> Var:
    """Attend with one broadcast matmul for each KV head, over slices of q, K and V."""
    queries = mb.split(x=q, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [q]
    keys_of = mb.split(x=keys, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [keys]
    values_of = mb.split(x=values, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [values]
    mixed = []
    for query, key, value in zip(queries, keys_of, values_of, strict=True):
        scores = _masked(mb.matmul(x=query, y=key, transpose_y=True), mask, sizes)
        mixed.append(mb.matmul(x=mb.softmax(x=scores, axis=-1), y=value))
    return mb.concat(values=mixed, axis=1) if len(mixed) > 1 else mixed[0]


def _attend_grouped(q: Var, keys: Var, values: Var, mask: Var, sizes: AttentionSizes) -> Var:
    """Attend with one matmul for all heads: the query heads of a group are rows of the same matrix."""
    slots = keys.shape[2]
    rows = mb.reshape(x=q, shape=(1, sizes.kv_heads, -1, sizes.head_dim))
    scores = mb.matmul(x=rows, y=keys, transpose_y=True)
    scores = mb.reshape(x=scores, shape=(sizes.kv_heads, sizes.group, -1, slots))
    weights = mb.softmax(x=_masked(scores, mask, sizes), axis=-1)
    weights = mb.reshape(x=weights, shape=(1, sizes.kv_heads, -1, slots))
    mixed = mb.matmul(x=weights, y=values)
    return mb.reshape(x=mixed, shape=(1, sizes.heads, -1, sizes.head_dim))
