"""The sizes of Mamba 2, and its tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.convert.families.family import Family
from anespec.convert.mixers.kept import CHUNKS, PoolKind, Store
from anespec.convert.mixers.recurrent.sizes import impossible, read_sizes, read_taps
from anespec.convert.mixers.recurrent.tensors import SSM_KERNEL, SSM_NORM, SSM_OUT, one_of, shared_tensors
from anespec.convert.mixers.tensors import Expected, ModelTensors, bias_name, part_name, tensor_name
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import padded

SSM_IN = "ssm_in"
SSM_Z, SSM_XBC, SSM_DT = SSM_PARTS = ("ssm_in.z", "ssm_in.xbc", "ssm_in.dt")
"""Files have one tensor for three projections, whose roles have the part's name at the end."""

SSM_SKIP = "ssm_d"
"""The whole name, after the layer's, of a tensor that has no suffix `.weight`."""


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

    def matrices(self, model: ModelTensors) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of the projections by role."""
        rows = {SSM_Z: self.inner, SSM_XBC: self.channels, SSM_DT: self.heads}
        inputs = {role: (count, model.hidden_size) for role, count in rows.items()}
        return inputs | {SSM_OUT: (model.hidden_size, self.inner)}

    def tensors(self, model: ModelTensors) -> Iterator[Expected]:
        """Yield the tensors that are no projections."""
        yield from shared_tensors(self, self.channels, self.taps, self.heads, model)
        yield bias_name(tensor_name(self, SSM_KERNEL)), ((self.channels,), True)
        yield one_of(model, part_name(self, SSM_SKIP), (self.heads, 1), (self.heads,))
        if self.normed:
            width = self.inner // self.groups
            yield one_of(model, tensor_name(self, SSM_NORM), (self.groups, width), (self.inner,))


def read_ssd(file: GGUFFile, family: Family, index: int) -> SSDFacts:
    """Return the Mamba 2 of a layer; raises GGUFError."""
    architecture = family.architecture
    inner, state, heads, groups = read_sizes(file, architecture)
    if not (heads and groups and state) or inner % (heads or 1) or heads % (groups or 1) or not inner:
        raise impossible(file, "Mamba 2", inner, state, heads, groups)
    return SSDFacts(
        index=index,
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=state,
        taps=read_taps(file, f"{architecture}.ssm.conv_kernel"),
        normed=not family.bare_mamba or f"blk.{index}.{SSM_NORM}.weight" in file.tensors,
    )
