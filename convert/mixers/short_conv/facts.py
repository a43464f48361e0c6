"""The sizes of gated short convolutions, and their tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.convert.mixers.kept import PoolKind, Store
from anespec.convert.mixers.recurrent.sizes import read_taps
from anespec.convert.mixers.tensors import Expected, ModelTensors, tensor_name
from anespec.gguf.container import GGUFFile

CONV_IN, CONV_OUT, CONV_KERNEL = "shortconv.in_proj", "shortconv.out_proj", "shortconv.conv"
"""Roles of the tensors of a short convolution, by their names in GGUF."""


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

    def matrices(self, model: ModelTensors) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of the projections by role."""
        return {
            CONV_IN: (3 * self.channels, model.hidden_size),
            CONV_OUT: (model.hidden_size, self.channels),
        }

    def tensors(self, model: ModelTensors) -> Iterator[Expected]:
        """Yield the tensors that are no projections."""
        yield tensor_name(self, CONV_KERNEL), ((self.channels, self.taps), False)


def read_convolution(file: GGUFFile, architecture: str, index: int, channels: int) -> ShortConvFacts:
    """Return the short convolution of a layer; raises GGUFError."""
    return ShortConvFacts(index, channels, read_taps(file, f"{architecture}.shortconv.l_cache"))
