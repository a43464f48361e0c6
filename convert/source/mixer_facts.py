"""The sizes of a layer's mixers: the parts that combine the rows of a sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from anespec.manifests.schema import padded


@dataclass(frozen=True)
class PoolKind:
    """What mixers of one pool have in common: how rows read it, and how many positions they see.

    `reads` and `window` are those of manifests.schema.KVCacheGroup.
    """

    reads: Literal["mask", "taps", "chunk"]
    window: int | None


@dataclass(frozen=True)
class Store:
    """What a mixer has in the slots of one pool: the numbers that it reads of each slot, and those it keeps.

    It keeps none if it reads another layer's.
    """

    pool: PoolKind
    read: int
    kept: int


@dataclass(frozen=True)
class AttentionFacts:
    """The sizes of the attention of layer `index`. `window` is None if every earlier position is visible.

    `rotary_dim` is 0 without rope. `scale` multiplies the scores. `kv_layer` is the layer to whose keys and
    values it attends: its own, or an earlier one.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    window: int | None
    scale: float
    kv_layer: int

    @property
    def slides(self) -> bool:
        """Whether the layer has a window."""
        return self.window is not None

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        sees = "sliding" if self.slides else "full"
        rope = "" if self.rotary_dim else ", no rope"
        return sees + rope + ("" if self.owns_kv else ", shared K/V")

    @property
    def owns_kv(self) -> bool:
        """Whether the layer computes keys and values of its own."""
        return self.kv_layer == self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots: keys and values."""
        read = 2 * self.kv_heads * self.head_dim
        return (Store(PoolKind("mask", self.window), read, read if self.owns_kv else 0),)

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return 0


@dataclass(frozen=True)
class LatentFacts:
    """The sizes of the multi-head latent attention of layer `index` (MLA, https://arxiv.org/abs/2405.04434).

    A row keeps one latent of `latent` channels and one key of `rotary_dim` channels, which rotates, for all
    `heads`. A head's key is `plain` channels made of the latent and the key that rotates; its value is
    `value_dim` channels made of the latent. Queries are made of a latent of `query_latent` channels, or of
    the hidden state if that is None. `scale` multiplies the scores.
    """

    index: int
    heads: int
    latent: int
    plain: int
    rotary_dim: int
    value_dim: int
    query_latent: int | None
    scale: float

    @property
    def kv_heads(self) -> int:
        """The heads of what a row keeps: one."""
        return 1

    @property
    def head_dim(self) -> int:
        """The channels of what a row keeps."""
        return self.latent + self.rotary_dim

    @property
    def key_dim(self) -> int:
        """The channels of a head's key."""
        return self.plain + self.rotary_dim

    @property
    def window(self) -> int | None:
        """The positions that a row sees: every earlier one."""
        return None

    @property
    def slides(self) -> bool:
        """Whether the layer has a window."""
        return False

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        return "latent"

    @property
    def kv_layer(self) -> int:
        """The layer whose kept rows it reads: its own."""
        return self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots; scores read all of it, and so do the sums of values."""
        return (Store(PoolKind("mask", None), 2 * self.head_dim, self.head_dim),)

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return 0


AttendingFacts = AttentionFacts | LatentFacts
"""A mixer whose rows attend to the slots that a mask shows."""


@dataclass(frozen=True)
class ShortConvFacts:
    """The sizes of the gated short convolution of layer `index`.

    Each of `channels` channels is a weighted sum of its last `taps` inputs, the row's own included.
    """

    index: int
    channels: int
    taps: int

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        return "short convolution"

    @property
    def kv_layer(self) -> int:
        """The layer whose kept rows it reads: its own."""
        return self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots: the convolution's inputs."""
        return (Store(PoolKind("taps", self.taps), self.channels, self.channels),)

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return 0


CHUNKS = PoolKind("chunk", None)


@dataclass(frozen=True)
class SSDFacts:
    """The sizes of the Mamba 2 of layer `index` (SSD, https://arxiv.org/abs/2405.21060).

    A head keeps a matrix [state, head_dim]. Consecutive heads share one of `groups` pairs of B and C. A short
    convolution of `taps` taps over B, C and the heads' inputs comes first. Without `normed` its output is not
    normalised before the last projection.
    """

    index: int
    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int
    normed: bool

    @property
    def inner(self) -> int:
        """The channels of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """The channels of the convolution."""
        return self.inner + 2 * self.groups * self.state

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        return "Mamba 2"

    @property
    def kv_layer(self) -> int:
        """The layer whose kept rows it reads: its own."""
        return self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots: the convolution's inputs, and B, dt x and the decays of its chunk."""
        rows = self.groups * self.state + self.inner + padded(self.heads)
        return (Store(PoolKind("taps", self.taps), *(self.channels,) * 2), Store(CHUNKS, rows, rows))

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return self.inner * self.state


@dataclass(frozen=True)
class DeltaFacts:
    """The sizes of the gated delta net of layer `index` (https://arxiv.org/abs/2412.06464).

    A head keeps a matrix [key_dim, value_dim]. If `tiled`, value head j has the key head j mod key_heads,
    else consecutive value heads share a key head. A short convolution of `taps` taps over queries, keys and
    values comes first. With `joins_gates` one projection has both the betas and the steps, by key head.
    """

    index: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = True
    joins_gates: bool = False

    @property
    def inner(self) -> int:
        """The channels of all value heads."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """The channels of the convolution."""
        return 2 * self.key_heads * self.key_dim + self.inner

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        return "gated delta net"

    @property
    def kv_layer(self) -> int:
        """The layer whose kept rows it reads: its own."""
        return self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots: the convolution's inputs, and the keys, values and gates of its chunk."""
        rows = self.heads * (self.key_dim + self.value_dim) + padded(2 * self.heads)
        return (Store(PoolKind("taps", self.taps), *(self.channels,) * 2), Store(CHUNKS, rows, rows))

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return self.inner * self.key_dim


RecurrentFacts = SSDFacts | DeltaFacts
"""A mixer that folds what it keeps at the end of each chunk."""

MixerFacts = AttentionFacts | LatentFacts | ShortConvFacts | SSDFacts | DeltaFacts
"""A part of a layer that combines the rows of a sequence."""
