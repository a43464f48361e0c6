"""Attention over the KV state, in the two shapes of DESIGN.md section 4."""

import math
from dataclasses import dataclass

import numpy as np

from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.projection import Projection, project
from anespec.convert.graph.rope import rotate
from anespec.manifests.schema import AttentionShape


@dataclass(frozen=True)
class AttentionSizes:
    """Heads of one layer; `scale` multiplies the scores."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    shape: AttentionShape

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True)
class AttentionWeights:
    """The four projections of one layer."""

    q: Projection
    k: Projection
    v: Projection
    output: Projection


@dataclass(frozen=True)
class BlockInputs:
    """What every layer of a shard shares: rope rows, and the masks of the layer's pool."""

    cos: Var
    sin: Var
    attn_mask: Var
    write_mask: Var
    kept: Var


@dataclass(frozen=True)
class LayerState:
    """The K and V states of one layer, [1, n_kv, S, head_dim] each."""

    k: Var
    v: Var


def attention(
    x: Var,
    weights: AttentionWeights,
    sizes: AttentionSizes,
    inputs: BlockInputs,
    state: LayerState,
    name: str,
) -> Var:
    """[1, d, T, 1] -> [1, d, T, 1]: project, rotate, write K/V, attend over the written state."""
    q = _split_heads(project(x, weights.q, f"{name}_q"), sizes.heads, sizes.head_dim)
    k = _split_heads(project(x, weights.k, f"{name}_k"), sizes.kv_heads, sizes.head_dim)
    v = _split_heads(project(x, weights.v, f"{name}_v"), sizes.kv_heads, sizes.head_dim)
    q = rotate(q, inputs.cos, inputs.sin, sizes.rotary_dim, sizes.head_dim)
    k = rotate(k, inputs.cos, inputs.sin, sizes.rotary_dim, sizes.head_dim)
    q = mb.mul(x=q, y=np.float16(sizes.scale))
    keys = kv.write(state.k, k, inputs.write_mask, inputs.kept, f"{name}_keys")
    values = kv.write(state.v, v, inputs.write_mask, inputs.kept, f"{name}_values")
    attend = _attend_grouped if sizes.shape is AttentionShape.GROUPED else _attend_per_kv_head
    mixed = attend(q, keys, values, inputs.attn_mask, sizes)
    return project(merge_heads(mixed, sizes), weights.output, f"{name}_output")


def _split_heads(x: Var, heads: int, head_dim: int) -> Var:
    """[1, heads * head_dim, T, 1] -> [1, heads, T, head_dim]."""
    return mb.transpose(x=mb.reshape(x=x, shape=(1, heads, head_dim, -1)), perm=[0, 1, 3, 2])


def merge_heads(x: Var, sizes: AttentionSizes) -> Var:
    """[1, heads, T, head_dim] -> [1, heads * head_dim, T, 1].

    The transpose to [heads, head_dim, T] is what makes this right for T > 1; for T = 1 a plain
    reshape gives the same.
    """
    channels = mb.transpose(x=x, perm=[0, 1, 3, 2])
    return mb.reshape(x=channels, shape=(1, sizes.heads * sizes.head_dim, -1, 1))


def _attend_per_kv_head(q: Var, keys: Var, values: Var, mask: Var, sizes: AttentionSizes) -> Var:
    """One broadcast matmul per KV head over slices of q, K and V."""
    queries = mb.split(x=q, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [q]
    keys_of = mb.split(x=keys, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [keys]
    values_of = mb.split(x=values, num_splits=sizes.kv_heads, axis=1) if sizes.kv_heads > 1 else [values]
    mixed = []
    for query, key, value in zip(queries, keys_of, values_of, strict=True):
        scores = mb.add(x=mb.matmul(x=query, y=key, transpose_y=True), y=mask)
        mixed.append(mb.matmul(x=mb.softmax(x=scores, axis=-1), y=value))
    return mb.concat(values=mixed, axis=1) if len(mixed) > 1 else mixed[0]


def _attend_grouped(q: Var, keys: Var, values: Var, mask: Var, sizes: AttentionSizes) -> Var:
    """One matmul for all heads: a group's query heads stand beside each other as rows."""
    slots = keys.shape[2]
    rows = mb.reshape(x=q, shape=(1, sizes.kv_heads, -1, sizes.head_dim))
    scores = mb.matmul(x=rows, y=keys, transpose_y=True)
    scores = mb.reshape(x=scores, shape=(sizes.kv_heads, sizes.group, -1, slots))
    weights = mb.softmax(x=mb.add(x=scores, y=mask), axis=-1)
    weights = mb.reshape(x=weights, shape=(1, sizes.kv_heads, -1, slots))
    mixed = mb.matmul(x=weights, y=values)
    return mb.reshape(x=mixed, shape=(1, sizes.heads, -1, sizes.head_dim))
