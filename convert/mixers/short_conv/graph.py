"""Build gated short convolutions over the rows' own inputs and those of the positions before them (LFM2).

A row's output is `out(C * conv(B * x))`, where B, C and x are parts of one projection of its input, and the
convolution is depthwise and causal. What is kept of a row is its input B * x. Rows read the inputs of earlier
positions by one-hot products, which are exact in any arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.heads import merge_heads, split_heads
from anespec.convert.graph.kv import KeptRows
from anespec.convert.graph.projection import Projection, project
from anespec.convert.mixers.mixer import ShardVars
from anespec.manifests.channel_layout import CHANNELS_AXIS
from anespec.manifests.schema import Fold, KVCacheGroup, RopeTable


@dataclass(frozen=True)
class ShortConvPlan:
    """The sizes of a layer's short convolution, and its pool."""

    index: int
    channels: int
    taps: int
    pool: KVCacheGroup

    @property
    def ropes(self) -> Sequence[RopeTable]:
        """The rope tables that it reads: none."""
        return ()

    @property
    def pools(self) -> Sequence[KVCacheGroup]:
        """Its only pool."""
        return (self.pool,)

    @property
    def kept(self) -> Sequence[KeptRows]:
        """Its inputs."""
        return (KeptRows(self.index, "conv", ((1, self.channels),), self.pool),)

    @property
    def fold(self) -> Fold | None:
        """How its state moves on at the end of a chunk: it has none."""
        return None


@dataclass(frozen=True)
class ShortConvWeights:
    """The projections, and the kernel (channels, taps), the row's own tap last."""

    inputs: Projection
    kernel: NDArray[np.float16]
    output: Projection


@dataclass(frozen=True)
class ShortConv:
    """A layer's short convolution with its weights; see Mixer."""

    plan: ShortConvPlan
    weights: ShortConvWeights

    def __call__(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Write the rows' inputs, and convolve them with those that the pool's taps show."""
        channels = self.plan.channels
        projected = project(x, self.weights.inputs, f"{name}_conv_in")
        before, after, own = mb.split(x=projected, split_sizes=[channels] * 3, axis=CHANNELS_AXIS)
        rows = split_heads(mb.mul(x=before, y=own), 1, channels)
        (kept,) = self.plan.kept
        mixed = convolve(rows, self.weights.kernel, kept, shard, name)
        gated = mb.mul(x=after, y=merge_heads(mixed, shard.layout))
        return project(gated, self.weights.output, f"{name}_conv_out")


def convolve(rows: Var, kernel: NDArray[np.float16], kept: KeptRows, shard: ShardVars, name: str) -> Var:
    """Write inputs [1, 1, T, channels], and convolve them with those that the pool's taps show.

    The kernel is (channels, taps), the row's own tap last; the result is [1, 1, T, channels].
    """
    channels, count = kernel.shape
    slots = shard.write(kept, 0, rows, f"{name}_conv_inputs")
    # One product of rank 2 for all taps: OpenVINO would otherwise move the kernel through the product.
    taps = mb.reshape(x=shard.by_name[kept.pool.mask_input], shape=(1, 1, -1, slots.shape[2]))
    found = mb.reshape(x=mb.matmul(x=taps, y=slots), shape=(1, count, -1, channels))
    weighed = mb.mul(x=found, y=np.ascontiguousarray(kernel.T[None, :, None]))
    return mb.reduce_sum(x=weighed, axes=[1], keep_dims=True)
