"""Build multi-head latent attention over the rows' latents (MLA, https://arxiv.org/abs/2405.04434).

A head's key is [B c, r]: a matrix B of the head times the row's normed latent c, and a key r that rotates and
that all heads share. With a query [a, p] the score is a . B c + p . r = (B^T a) . c + p . r. So queries are
multiplied by B^T once, and what is kept of a row is [c, r], one head for all heads. The values are D c with
another matrix D of the head, so the sum of latents is multiplied by D once.

Both the scores and the sums read the kept rows as they are. The sum of the keys that rotate is left out
afterwards: it is a ninth of the product at the published sizes, and a slice of the slots would copy them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.heads import merge_heads, split_heads
from anespec.convert.graph.kv import KeptRows
from anespec.convert.graph.norm import rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.convert.mixers.attention.graph import AttentionSizes, attend, rotate, rotation_of
from anespec.convert.mixers.mixer import ShardVars
from anespec.manifests.channel_layout import CHANNELS_AXIS, channel_shape
from anespec.manifests.schema import Fold, KVCacheGroup, RopeTable


@dataclass(frozen=True)
class LatentPlan:
    """The sizes of a layer's latent attention, its pool and its rope table.

    `sizes` are those of the attention to the kept rows, whose head_dim is the latent's channels and those
    that rotate. `plain` are the channels of a head's query that do not rotate.
    """

    index: int
    sizes: AttentionSizes
    plain: int
    pool: KVCacheGroup
    rope: RopeTable | None

    @property
    def latent(self) -> int:
        """The channels of the latent."""
        return self.sizes.head_dim - self.sizes.rotary_dim

    @property
    def ropes(self) -> Sequence[RopeTable]:
        """The rope table that it reads."""
        return () if self.rope is None else (self.rope,)

    @property
    def pools(self) -> Sequence[KVCacheGroup]:
        """Its only pool."""
        return (self.pool,)

    @property
    def kept(self) -> Sequence[KeptRows]:
        """The latents and the keys that rotate, side by side."""
        return (KeptRows(self.index, "latent", ((1, self.sizes.head_dim),), self.pool),)

    @property
    def fold(self) -> Fold | None:
        """How its state moves on at the end of a chunk: it has none."""
        return None


@dataclass(frozen=True)
class QueryLatent:
    """The projection to the latent of queries, and the weight of its norm."""

    down: Projection
    norm: NDArray[np.float16]


@dataclass(frozen=True)
class LatentWeights:
    """The projections of a layer's latent attention.

    `kept` gives the latent and the key that rotates; `norm` is the weight of the latent's norm. Each head has
    one of `head_keys`, from its query to (latent), and of `head_values`, from the latent to its value.
    Without `query_latent` the queries are made of the hidden state.
    """

    query_latent: QueryLatent | None
    queries: Projection
    kept: Projection
    norm: NDArray[np.float16]
    head_keys: Sequence[Projection]
    head_values: Sequence[Projection]
    output: Projection


@dataclass(frozen=True)
class LatentAttention:
    """A layer's latent attention with its weights; see Mixer."""

    plan: LatentPlan
    weights: LatentWeights

    def __call__(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Write the rows' latents, and attend to all that the pool's mask shows."""
        plan, weights = self.plan, self.weights
        (kept,) = plan.kept
        slots = shard.write(kept, 0, self._rows(x, shard, name), f"{name}_latents")
        queries = self._queries(x, shard, name)
        mixed = attend(queries, slots, slots, shard.by_name[plan.pool.mask_input], plan.sizes)
        latents, _ = mb.split(x=mixed, split_sizes=[plan.latent, plan.sizes.rotary_dim], axis=-1)
        values = _each_head(merge_heads(latents, shard.layout), weights.head_values, name, "v_b")
        return project(values, weights.output, f"{name}_output")

    def _rows(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Return what is kept of the rows, [1, 1, T, head_dim]."""
        plan, sizes = self.plan, self.plan.sizes
        both = project(x, self.weights.kept, f"{name}_kv_a")
        latent, key = mb.split(x=both, split_sizes=[plan.latent, sizes.rotary_dim], axis=CHANNELS_AXIS)
        normed = rms_norm(latent, self.weights.norm, sizes.epsilon, f"{name}_kv_a_norm")
        key = self._rotated(split_heads(key, 1, sizes.rotary_dim), shard)
        return mb.concat(values=[split_heads(normed, 1, plan.latent), key], axis=-1)

    def _queries(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Return the queries for what is kept, times the scale of the scores: [1, heads, T, head_dim]."""
        plan, sizes, weights = self.plan, self.plan.sizes, self.weights
        if (down := weights.query_latent) is not None:
            x = rms_norm(project(x, down.down, f"{name}_q_a"), down.norm, sizes.epsilon, f"{name}_q_a_norm")
        whole = project(x, weights.queries, f"{name}_q" if down is None else f"{name}_q_b")
        by_head = mb.reshape(x=whole, shape=(1, sizes.heads, plan.plain + sizes.rotary_dim, -1))
        plain, rotary = mb.split(x=by_head, split_sizes=[plan.plain, sizes.rotary_dim], axis=2)
        rotary = self._rotated(mb.transpose(x=rotary, perm=[0, 1, 3, 2]), shard)
        plain = mb.reshape(x=plain, shape=channel_shape(sizes.heads * plan.plain, -1, shard.layout))
        for_latents = _each_head(plain, weights.head_keys, name, "k_b")
        latents = split_heads(for_latents, sizes.heads, plan.latent)
        return mb.mul(x=mb.concat(values=[latents, rotary], axis=-1), y=np.float16(sizes.scale))

    def _rotated(self, x: Var, shard: ShardVars) -> Var:
        """Rotate whole heads [1, heads, T, rotary_dim]."""
        rope, size = rotation_of(self.plan.rope, shard.by_name), self.plan.sizes.rotary_dim
        return x if rope is None else rotate(x, rope.cos, rope.sin, size, size)


def _each_head(x: Var, heads: Sequence[Projection], name: str, role: str) -> Var:
    """Apply each head's projection to its share of the channels, and join the results."""
    parts = mb.split(x=x, num_splits=len(heads), axis=CHANNELS_AXIS) if len(heads) > 1 else [x]
    found = [
        project(part, projection, f"{name}_head_{number}_{role}")
        for number, (part, projection) in enumerate(zip(parts, heads, strict=True))
    ]
    return mb.concat(values=found, axis=CHANNELS_AXIS) if len(found) > 1 else found[0]
