"""Build Mamba 2 (SSD, https://arxiv.org/abs/2405.21060) over the rows of a chunk and a carried state.

With h0 the state at the chunk's start, dt = softplus(.) a row's step, a < 0 the head's decay, and D_ij the
sum of dt a behind row j up to row i, row i is

    o_i = e^(D_i) C_i h0 + sum_j<=i (C_i . B_j) e^(D_ij) (dt_j x_j) + skip x_i

The rows keep B, dt x and dt a in the chunk's slots.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.heads import merge_heads, split_heads
from anespec.convert.graph.norm import rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.convert.mixers.mamba2.facts import SSDFacts
from anespec.convert.mixers.mixer import ShardVars
from anespec.convert.mixers.recurrent.chunks import Chunk, RecurrentPlan, on_diagonal, rows_of_heads, softplus
from anespec.convert.mixers.short_conv.graph import convolve
from anespec.manifests.channel_layout import CHANNELS_AXIS
from anespec.manifests.schema import padded


class SSDPlan(RecurrentPlan[SSDFacts]):
    """The plan of a layer's Mamba 2; it keeps B, dt x and the logarithms of decays."""

    kind = "ssd"

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The heads and the width of each part of a row."""
        sizes = self.sizes
        return (sizes.groups, sizes.state), (sizes.heads, sizes.head_dim), (1, padded(sizes.heads))


@dataclass(frozen=True)
class SSDWeights:
    """The weights of a layer's Mamba 2.

    `step` includes the steps' bias. The kernel is (channels, taps), its bias (channels,) or None. `decay` and
    `skip` are by head, `norm` is [groups, channels of a group] or None.
    """

    gate: Projection
    inputs: Projection
    step: Projection
    output: Projection
    kernel: NDArray[np.float16]
    kernel_bias: NDArray[np.float16] | None
    decay: NDArray[np.float32]
    skip: NDArray[np.float16]
    norm: NDArray[np.float16] | None


@dataclass(frozen=True)
class SSD:
    """A layer's Mamba 2 with its weights; see Mixer."""

    plan: SSDPlan
    weights: SSDWeights

    def __call__(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Write the rows into their chunk's slots, and read what the chunk and the carried state hold."""
        plan, weights, sizes = self.plan, self.weights, self.plan.sizes
        own, b, c = self._convolved(x, shard, name)
        step = split_heads(softplus(project(x, weights.step, f"{name}_ssm_dt")), 1, sizes.heads)
        decays = mb.matmul(x=step, y=on_diagonal(weights.decay, padded(sizes.heads)))
        fresh = mb.mul(x=own, y=mb.transpose(x=step, perm=[0, 3, 2, 1]))
        chunk = Chunk.of(plan.chunk, shard)
        keys = chunk.write(plan.rows, 0, b, shard, f"{name}_ssm_b")
        values = chunk.write(plan.rows, 1, fresh, shard, f"{name}_ssm_x")
        (logs,) = chunk.write_gates(plan.rows, 2, decays, [sizes.heads], shard, f"{name}_ssm_g")
        since, between = chunk.row_decays(logs)
        carried = mb.reshape(x=shard.read(plan.state), shape=_by_sequence(sizes, chunk))
        query = mb.reshape(x=c, shape=(sizes.groups, 1, -1, sizes.state))
        scores = _over_heads(mb.matmul(x=query, y=keys, transpose_y=True), sizes)
        inside = mb.matmul(x=mb.mul(x=between, y=scores), y=values)
        before = mb.mul(x=mb.matmul(x=_over_heads(query, sizes), y=carried), y=since)
        read = mb.reshape(x=chunk.own(mb.add(x=before, y=inside)), shape=(1, sizes.heads, -1, sizes.head_dim))
        skipped = mb.mul(x=own, y=weights.skip.reshape(1, -1, 1, 1))
        mixed = merge_heads(mb.add(x=read, y=skipped), shard.layout)
        gated = mb.mul(x=mixed, y=mb.silu(x=project(x, weights.gate, f"{name}_ssm_z")))
        return project(self._normed(gated, name), weights.output, f"{name}_ssm_out")

    def _convolved(self, x: Var, shard: ShardVars, name: str) -> tuple[Var, Var, Var]:
        """Return x, B and C of the rows, [1, heads or groups, T, width] each."""
        weights, sizes = self.weights, self.plan.sizes
        rows = split_heads(project(x, weights.inputs, f"{name}_ssm_xbc"), 1, sizes.channels)
        mixed = convolve(rows, weights.kernel, self.plan.inputs, shard, f"{name}_ssm")
        if weights.kernel_bias is not None:
            mixed = mb.add(x=mixed, y=weights.kernel_bias.reshape(1, 1, 1, -1))
        width = sizes.groups * sizes.state
        own, b, c = mb.split(x=mb.silu(x=mixed), split_sizes=[sizes.inner, width, width], axis=3)
        own = rows_of_heads(own, sizes.heads, sizes.head_dim)
        return own, *(rows_of_heads(part, sizes.groups, sizes.state) for part in (b, c))

    def _normed(self, gated: Var, name: str) -> Var:
        """Return the channels normed group by group."""
        norm, groups = self.weights.norm, self.plan.sizes.groups
        if norm is None:
            return gated
        parts = mb.split(x=gated, num_splits=groups, axis=CHANNELS_AXIS) if groups > 1 else [gated]
        normed = [
            rms_norm(part, norm[group], self.plan.epsilon, f"{name}_ssm_norm_{group}")
            for group, part in enumerate(parts)
        ]
        return mb.concat(values=normed, axis=CHANNELS_AXIS) if groups > 1 else normed[0]


def _by_sequence(sizes: SSDFacts, chunk: Chunk) -> tuple[int, int, int, int]:
    return sizes.heads, chunk.sequences, sizes.state, sizes.head_dim


def _over_heads(of_groups: Var, sizes: SSDFacts) -> Var:
    """Repeat [groups, ...] for the heads of each group, which are consecutive; one group is broadcast."""
    if sizes.groups in (1, sizes.heads):
        return of_groups
    parts = mb.split(x=of_groups, num_splits=sizes.groups, axis=0)
    return mb.concat(values=[part for part in parts for _ in range(sizes.heads // sizes.groups)], axis=0)
