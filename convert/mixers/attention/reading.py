"""Read the sizes of each layer's attention from a GGUF's metadata."""

import math

import numpy as np

from anespec.convert.families.family import Family
from anespec.convert.mixers.attention.facts import AttentionFacts
from anespec.convert.source.metadata import MetadataReader
from anespec.gguf.container import GGUFFile
from anespec.system.errors import GGUFError, UnsupportedModelError


class AttentionReader(MetadataReader):
    """Reads the attention of a model's layers, of which there are `count`."""

    def __init__(self, file: GGUFFile, family: Family, hidden_size: int, count: int) -> None:
        super().__init__(file, family)
        self.hidden_size = hidden_size
        self.windows = self._windows(count)
        ones = [1] * count
        self.rope_flags = (
            self.per_layer("attention.rope_pattern", count, ones) if family.rope_pattern else ones
        )
        self.own = count - self._shared_layers(count)

    def attention(self, index: int, heads: int, kv_heads: int) -> AttentionFacts:
        """Return the attention of a layer.

        Raises:
            GGUFError: the sizes contradict each other.
            UnsupportedModelError: heads of keys and values differ in size, or fp16 cannot hold a factor.
        """
        kv_layer = self._kv_layer(index)
        head_dim, rotary_dim = self._head_sizes(heads, self.windows[index] is not None)
        if not kv_heads or heads % kv_heads:
            raise self.corrupt(
                f"{heads} query heads, {kv_heads} KV heads and width {self.hidden_size} are impossible for a "
                "layer"
            )
        return AttentionFacts(
            index=index,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rotary_dim=rotary_dim if self._rotates(index) else 0,
            window=self.windows[index],
            scale=self._score_scale(heads, head_dim),
            kv_layer=kv_layer,
        )

    def _windows(self, count: int) -> list[int | None]:
        pattern = self.family.sliding
        if pattern is None or pattern.of_layers not in (None, count):
            return [None] * count
        window = self.file.integer(self.key("attention.sliding_window"), pattern.window or 0)
        if not window:
            return [None] * count
        suffix = "attention.sliding_window_pattern"
        if isinstance(self.file.metadata.get(self.key(suffix)), np.ndarray):
            slides = self.per_layer(suffix, count)
        else:
            period = self.file.integer(self.key(suffix), pattern.period)
            slides = [(index + 1) % period if period else 1 for index in range(count)]
        return [window if slide else None for slide in slides]

    def _rotates(self, index: int) -> bool:
        family = self.family
        if family.rope_switch and not self.file.flag(self.key("rope.scaling.finetuned"), True):
            return False
        if not self.rope_flags[index]:
            return False
        if family.sliding is not None and family.sliding.only_sliding_rotate and any(self.windows):
            return self.windows[index] is not None
        return family.rope_free_step is None or (index + 1) % family.rope_free_step != 0

    def _head_sizes(self, heads: int, slides: bool) -> tuple[int, int]:
        """Return a head's dimensions, and how many of them rotate; sliding layers may have other ones."""
        file, hidden_size = self.file, self.hidden_size
        head_dim = file.integer(self.key("attention.key_length"), hidden_size // heads if heads else 0)
        value_dim = file.integer(self.key("attention.value_length"), head_dim)
        rotary = file.integer(self.key("rope.dimension_count"), head_dim)
        if slides:
            own_rotary = head_dim == rotary
            head_dim = file.integer(self.key("attention.key_length_swa"), head_dim)
            value_dim = file.integer(self.key("attention.value_length_swa"), value_dim)
            default = head_dim if own_rotary else rotary
            rotary = file.integer(self.key("rope.dimension_count_swa"), default)
        if not head_dim:
            raise self.corrupt(f"{heads} heads at width {hidden_size} have no dimensions")
        if value_dim != head_dim:
            raise UnsupportedModelError(
                f"{file.path}: K heads of {head_dim} and V heads of {value_dim} differ, which the block "
                "graph does not support"
            )
        if rotary % 2 or not 0 < rotary <= head_dim:
            raise GGUFError(
                f"{file.path}: rope.dimension_count is {rotary}, not an even number up to the head's "
                f"{head_dim}"
            )
        return head_dim, rotary

    def _score_scale(self, heads: int, head_dim: int) -> float:
        family = self.family
        if family.attention_scale is not None:
            return family.attention_scale
        named = self.file.number(self.key("attention.scale"), 0.0) if family.reads_scales else 0.0
        if named:
            return self.factor("attention.scale", named)
        return 1.0 / math.sqrt(
            self.hidden_size // heads if len(self.windows) == family.wide_scale_layers else head_dim
        )

    def _shared_layers(self, count: int) -> int:
        """Return how many of the last layers attend to an earlier layer's K/V."""
        shared = self.file.integer(self.key("attention.shared_kv_layers"), 0)
        if not self.family.per_layer_inputs or not shared:
            return 0
        if not 0 <= shared < count:
            raise self.corrupt(f"{shared} of {count} layers share the K/V of others")
        return shared

    def _kv_layer(self, index: int) -> int:
        """Return the last layer with K/V of its own that sees as many positions as this one."""
        if index < self.own:
            return index
        like = [i for i in range(self.own) if self.windows[i] == self.windows[index]]
        if not like:
            raise self.corrupt(f"layer {index} shares K/V, but no earlier layer sees as far")
        return like[-1]
