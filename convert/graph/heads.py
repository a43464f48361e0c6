"""Split channel tensors into heads and merge heads, and bound numbers softly."""

import numpy as np

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.channel_layout import ChannelLayout, channel_shape


def logit_softcap(x: Var, cap: float) -> Var:
    """Return cap * tanh(x / cap), elementwise."""
    bounded = mb.tanh(x=mb.mul(x=x, y=np.float16(1 / cap)))
    return mb.mul(x=bounded, y=np.float16(cap))


def split_heads(x: Var, heads: int, head_dim: int) -> Var:
    """Split heads * head_dim channels into [1, heads, T, head_dim]."""
    return mb.transpose(x=mb.reshape(x=x, shape=(1, heads, head_dim, -1)), perm=[0, 1, 3, 2])


def merge_heads(x: Var, layout: ChannelLayout) -> Var:
    """Merge [1, heads, T, head_dim] into a channel tensor of heads * head_dim channels.

    For T > 1 this needs a transpose to [heads, head_dim, T] first; for T = 1 a reshape alone would do.
    """
    channels = mb.transpose(x=x, perm=[0, 1, 3, 2])
    return mb.reshape(x=channels, shape=channel_shape(x.shape[1] * x.shape[3], -1, layout))
