"""Read a model's sizes and scales from a GGUF's metadata, layer by layer, and check them."""

import math
from dataclasses import dataclass

import numpy as np

from anespec.convert.families import MIXTURE, family_of
from anespec.convert.families.family import EmbeddingScale, Family, RopeStyle
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import LARGEST_FACTOR, MOST_LAYERS, MOST_TOKENS, WIDEST
from anespec.system.errors import GGUFError, UnsupportedModelError

EMBEDDING = "token_embd.weight"

LARGEST_EPSILON = 1.0
SMALLEST_FACTOR = 2.0**-14
"""The smallest factor in the graph; factors must be normal numbers in fp16."""


@dataclass(frozen=True)
class LayerFacts:
    """The sizes of one layer. `window` is None if every earlier position is visible.

    `rotary_dim` is 0 if the layer has no rope. `scale` multiplies the scores. `kv_layer` is the layer to
    whose keys and values it attends: itself, or an earlier one.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    intermediate_size: int
    window: int | None
    scale: float
    kv_layer: int

    @property
    def slides(self) -> bool:
        """Whether the layer has a window."""
        return self.window is not None

    @property
    def kind(self) -> str:
        """A label for layers whose graphs are the same apart from sizes."""
        sees = "sliding" if self.slides else "full"
        rope = "" if self.rotary_dim else ", no rope"
        return sees + rope + ("" if self.owns_kv else ", shared K/V")

    @property
    def owns_kv(self) -> bool:
        """Whether the layer computes keys and values of its own."""
        return self.kv_layer == self.index


@dataclass(frozen=True)
class ModelFacts:
    """The sizes and scales of a model. A softcap of None means that there is none."""

    family: Family
    hidden_size: int
    vocabulary: int
    epsilon: float
    trained_context: int
    layers: tuple[LayerFacts, ...]
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    per_layer_width: int
    rope_style: RopeStyle

    @property
    def widest(self) -> LayerFacts:
        """The first layer with full attention, else the first layer; its sizes count as the model's."""
        return next((layer for layer in self.layers if not layer.slides), self.layers[0])


def read_facts(file: GGUFFile) -> ModelFacts:
    """Read the facts of an open GGUF.

    Raises:
        GGUFError: a key is missing or has an invalid value.
        UnsupportedModelError: the architecture, or a feature that the file requests, is not supported.
    """
    return _Reader(file).facts()


class _Reader:
    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.family = family_of(file.text("general.architecture"))

    def key(self, suffix: str) -> str:
        return f"{self.family.architecture}.{suffix}"

    def facts(self) -> ModelFacts:
        file, family = self.file, self.family
        if (experts := file.integer(self.key("expert_count"), 0)) > 0:
            raise UnsupportedModelError(f"{file.path}: with {experts} experts it {MIXTURE}")
        hidden_size = file.integer(self.key("embedding_length"))
        count = file.integer(self.key("block_count"))
        epsilon = file.number(self.key("attention.layer_norm_rms_epsilon"))
        context = file.integer(self.key("context_length"))
        if not 0 < count <= MOST_LAYERS:
            raise GGUFError(f"{file.path}: claims {count} layers; 1 to {MOST_LAYERS} are sensible")
        if not 0 < epsilon < LARGEST_EPSILON or not hidden_size or not context:
            raise self.corrupt(f"a size is zero, or the norm's epsilon {epsilon:g} is invalid")
        layers, vocabulary = self.layers(hidden_size, count), file.info(EMBEDDING).shape[0]
        widest = max(
            hidden_size, *(max(layer.intermediate_size, layer.heads * layer.head_dim) for layer in layers)
        )
        if widest > WIDEST or vocabulary > MOST_TOKENS:
            raise GGUFError(
                f"{file.path}: claims layers of width {widest} and {vocabulary} tokens; at most {WIDEST} and "
                f"{MOST_TOKENS} are sensible"
            )
        scales = family.reads_scales
        logit_scale = file.number(self.key("logit_scale"), 0.0) if scales else 0.0
        return ModelFacts(
            family=family,
            hidden_size=hidden_size,
            vocabulary=vocabulary,
            epsilon=epsilon,
            trained_context=context,
            layers=layers,
            embedding_scale=self.embedding_scale(hidden_size),
            residual_scale=self.factor(
                "residual_scale", (file.number(self.key("residual_scale"), 0.0) if scales else 0.0) or 1.0
            ),
            logit_scale=self.factor("logit_scale", 1.0 / logit_scale if logit_scale else 1.0),
            attention_softcap=self.softcap("attn_logit_softcapping", family.attention_softcap),
            logit_softcap=self.softcap("final_logit_softcapping", family.logit_softcap),
            per_layer_width=(
                file.integer(self.key("embedding_length_per_layer_input"), 0)
                if family.per_layer_inputs
                else 0
            ),
            rope_style=self.rope_style(),
        )

    def rope_style(self) -> RopeStyle:
        sections = self.file.metadata.get(self.key("rope.dimension_sections"))
        if self.family.sections_mean_neox and sections is not None:
            return RopeStyle.NEOX
        return self.family.rope_style

    def embedding_scale(self, hidden_size: int) -> float:
        match self.family.embedding_scale:
            case EmbeddingScale.NONE:
                return 1.0
            case EmbeddingScale.SQRT_WIDTH:
                return math.sqrt(hidden_size)
            case EmbeddingScale.KEY:
                scale = self.file.number(self.key("embedding_scale"), 0.0) or 1.0
                return self.factor("embedding_scale", scale)

    def softcap(self, suffix: str, default: float | None) -> float | None:
        """Return a softcap; None if the family has none, or the file says 0, as in llama.cpp."""
        cap = 0.0 if default is None else self.file.number(self.key(suffix), default)
        if cap < 0:
            raise self.corrupt(f"the softcap {self.key(suffix)!r} is {cap:g}")
        if cap:
            # The graph multiplies by the cap and by its reciprocal.
            self.factor(suffix, 1.0 / cap)
            self.factor(suffix, cap)
        return cap or None

    def factor(self, suffix: str, value: float) -> float:
        """Return a factor of the graph that the key determines; refuse it if fp16 cannot hold it."""
        if not SMALLEST_FACTOR <= abs(value) <= LARGEST_FACTOR:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.key(suffix)!r} gives a factor of {value:.3g}, which fp16 cannot "
                "hold; the metadata is corrupt"
            )
        return value

    def layers(self, hidden_size: int, count: int) -> tuple[LayerFacts, ...]:
        windows = self.windows(count)
        heads = self.per_layer("attention.head_count", count)
        kv_heads = self.per_layer("attention.head_count_kv", count, heads)
        widths = self.per_layer("feed_forward_length", count)
        own = count - self.shared_layers(count)
        layers = []
        for index in range(count):
            head_dim, rotary_dim = self.head_sizes(hidden_size, heads[index], windows[index] is not None)
            if not kv_heads[index] or heads[index] % kv_heads[index] or not widths[index]:
                raise self.corrupt(
                    f"{heads[index]} query heads, {kv_heads[index]} KV heads, width {hidden_size} and an "
                    f"MLP of {widths[index]} are impossible for a layer"
                )
            layers.append(
                LayerFacts(
                    index=index,
                    heads=heads[index],
                    kv_heads=kv_heads[index],
                    head_dim=head_dim,
                    rotary_dim=rotary_dim if self.rotates(index, windows) else 0,
                    intermediate_size=widths[index],
                    window=windows[index],
                    scale=self.score_scale(hidden_size, heads[index], head_dim, count),
                    kv_layer=self.kv_layer(index, own, windows),
                )
            )
        return tuple(layers)

    def windows(self, count: int) -> list[int | None]:
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

    def rotates(self, index: int, windows: list[int | None]) -> bool:
        family = self.family
        if family.rope_switch and not self.file.flag(self.key("rope.scaling.finetuned"), True):
            return False
        if family.sliding is not None and family.sliding.only_sliding_rotate and any(windows):
            return windows[index] is not None
        return family.rope_free_step is None or (index + 1) % family.rope_free_step != 0

    def head_sizes(self, hidden_size: int, heads: int, slides: bool) -> tuple[int, int]:
        """Return a head's dimensions, and how many of them rotate; sliding layers may have other ones."""
        file = self.file
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

    def score_scale(self, hidden_size: int, heads: int, head_dim: int, count: int) -> float:
        family = self.family
        if family.attention_scale is not None:
            return family.attention_scale
        named = self.file.number(self.key("attention.scale"), 0.0) if family.reads_scales else 0.0
        if named:
            return self.factor("attention.scale", named)
        return 1.0 / math.sqrt(hidden_size // heads if count == family.wide_scale_layers else head_dim)

    def shared_layers(self, count: int) -> int:
        """Return how many of the last layers attend to an earlier layer's K/V."""
        shared = self.file.integer(self.key("attention.shared_kv_layers"), 0)
        if not self.family.per_layer_inputs or not shared:
            return 0
        if not 0 <= shared < count:
            raise self.corrupt(f"{shared} of {count} layers share the K/V of others")
        return shared

    def kv_layer(self, index: int, own: int, windows: list[int | None]) -> int:
        """Return the last layer with K/V of its own that sees as many positions as this one."""
        if index < own:
            return index
        like = [i for i in range(own) if windows[i] == windows[index]]
        if not like:
            raise self.corrupt(f"layer {index} shares K/V, but no earlier layer sees as far")
        return like[-1]

    def per_layer(self, suffix: str, count: int, default: list[int] | None = None) -> list[int]:
        """Return a number for each layer, which GGUF gives once for all layers or layer by layer."""
        key = self.key(suffix)
        values = self.file.metadata.get(key)
        if values is None and default is not None:
            return default
        if isinstance(values, np.ndarray) and values.dtype.kind in "iub":
            if len(values) < count:
                raise self.corrupt(f"{key!r} has {len(values)} entries for {count} layers")
            numbers = [int(value) for value in values[:count]]
        else:
            numbers = [self.file.integer(key)] * count
        if min(numbers) < 0:
            raise self.corrupt(f"{key!r} has a negative entry")
        return numbers

    def corrupt(self, what: str) -> GGUFError:
        return GGUFError(f"{self.file.path}: {what}; the metadata is corrupt")
