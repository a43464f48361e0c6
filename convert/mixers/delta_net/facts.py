"""The sizes of gated delta nets, and their tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.convert.mixers.kept import CHUNKS, PoolKind, Store
from anespec.convert.mixers.recurrent.sizes import impossible, read_sizes, read_taps
from anespec.convert.mixers.recurrent.tensors import SSM_NORM, SSM_OUT, shared_tensors
from anespec.convert.mixers.tensors import Expected, ModelTensors, tensor_name
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import padded

DELTA_QKV, DELTA_GATE, DELTA_ALPHA, DELTA_BETA = "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"
"""Roles of the projections, by their names in GGUF."""

JOINED_GATES = "ssm_ba"
"""The role of a projection that has both the betas and the steps."""


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

    def matrices(self, model: ModelTensors) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of the projections by role."""
        rows = {DELTA_QKV: self.channels, DELTA_GATE: self.inner}
        if self.joins_gates:
            rows |= {JOINED_GATES: 2 * self.heads}
        else:
            rows |= {DELTA_ALPHA: self.heads, DELTA_BETA: self.heads}
        inputs = {role: (count, model.hidden_size) for role, count in rows.items()}
        return inputs | {SSM_OUT: (model.hidden_size, self.inner)}

    def tensors(self, model: ModelTensors) -> Iterator[Expected]:
        """Yield the tensors that are no projections."""
        yield from shared_tensors(self, self.channels, self.taps, self.heads, model)
        yield tensor_name(self, SSM_NORM), ((self.value_dim,), False)


def read_delta_net(file: GGUFFile, architecture: str, index: int, *, tiled: bool) -> DeltaFacts:
    """Return the gated delta net of a layer, whose keys and values have the same width; raises GGUFError."""
    inner, state, heads, groups = read_sizes(file, architecture)
    if not (heads and groups and state) or inner != heads * state or heads % (groups or 1):
        raise impossible(file, "a gated delta net", inner, state, heads, groups)
    return DeltaFacts(
        index=index,
        key_heads=groups,
        heads=heads,
        key_dim=state,
        value_dim=state,
        taps=read_taps(file, f"{architecture}.ssm.conv_kernel"),
        tiled=tiled,
        joins_gates=f"blk.{index}.{JOINED_GATES}.weight" in file.tensors,
    )
