"""Read a model's sizes and scales from a GGUF's metadata, layer by layer, and check them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.families import family_of
from anespec.convert.families.family import (
    XIELU,
    Activation,
    EmbeddingScale,
    Family,
    LayerActivation,
    LogitScale,
    NormKind,
    Recurrent,
    RopeStyle,
)
from anespec.convert.mixers.attention.reading import AttentionReader
from anespec.convert.mixers.delta_net.facts import read_delta_net
from anespec.convert.mixers.kinds import AttendingFacts as AttendingFacts
from anespec.convert.mixers.kinds import AttentionFacts as AttentionFacts
from anespec.convert.mixers.kinds import DeltaFacts as DeltaFacts
from anespec.convert.mixers.kinds import LatentFacts as LatentFacts
from anespec.convert.mixers.kinds import MixerFacts as MixerFacts
from anespec.convert.mixers.kinds import RecurrentFacts as RecurrentFacts
from anespec.convert.mixers.kinds import ShortConvFacts as ShortConvFacts
from anespec.convert.mixers.kinds import SSDFacts as SSDFacts
from anespec.convert.mixers.latent.facts import read_latent
from anespec.convert.mixers.mamba2.facts import read_ssd
from anespec.convert.mixers.short_conv.facts import read_convolution
from anespec.convert.source.experts import ExpertsReader, MixtureFacts
from anespec.convert.source.layer_parts import Part, read_parts
from anespec.convert.source.metadata import MetadataReader
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import LARGEST_FACTOR, MOST_LAYERS, MOST_TOKENS, WIDEST, Hyperparameters
from anespec.system.errors import GGUFError, UnsupportedModelError

EMBEDDING = "token_embd.weight"
POSITION_EMBEDDING = "position_embd.weight"

LARGEST_EPSILON = 1.0
MINICPM_EMBEDDING, MINICPM_RESIDUAL, MINICPM_WIDTH = 12.0, 1.4, 256
"""The scales of MiniCPM files without keys for them, as in llama.cpp: of embeddings, of a residual addition
times sqrt(layers), and the hidden size at which logits are not divided."""


@dataclass(frozen=True)
class MLPFacts:
    """The width and the activation function of a layer's MLP."""

    width: int
    activation: LayerActivation


FeedForwardFacts = MLPFacts | MixtureFacts
"""The part of a layer that works on every row alone."""


@dataclass(frozen=True)
class LayerFacts:
    """The parts of one layer: mixers, which are added up over one norm, and the feed forward.

    A layer may have no mixers, or no feed forward.
    """

    index: int
    mixers: tuple[MixerFacts, ...]
    mlp: FeedForwardFacts | None

    @property
    def kind(self) -> str:
        """A label for layers whose graphs are the same apart from sizes."""
        if not self.mixers:
            return "experts alone" if isinstance(self.mlp, MixtureFacts) else "MLP alone"
        mixers = " + ".join(mixer.kind for mixer in self.mixers)
        return f"{mixers}, experts" if isinstance(self.mlp, MixtureFacts) else mixers

    @property
    def attention(self) -> AttendingFacts | None:
        """The layer's attention; None if it has none."""
        return next((mixer for mixer in self.mixers if isinstance(mixer, AttendingFacts)), None)


@dataclass(frozen=True)
class ModelFacts:
    """The sizes and scales of a model. A softcap or a clamp of None means that there is none.

    `positions` is the number of positions that have a row in a table; None if the model has no such table.
    `left_out` are blocks after the last layer, which only predict later tokens and are not used.
    """

    family: Family
    hidden_size: int
    vocabulary: int
    epsilon: float
    trained_context: int
    positions: int | None
    layers: tuple[LayerFacts, ...]
    left_out: range
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    attention_softcap: float | None
    attention_clamp: float | None
    logit_softcap: float | None
    per_layer_width: int
    rope_style: RopeStyle

    @property
    def hidden_scale(self) -> float:
        """The factor of the hidden state in the graph; see Family."""
        smallest, scale = self.family.large_hidden_scale or (math.inf, 1.0)
        return scale if self.hidden_size >= smallest else self.family.hidden_scale

    @property
    def mixers(self) -> tuple[MixerFacts, ...]:
        """The mixers of all layers, in order."""
        return tuple(mixer for layer in self.layers for mixer in layer.mixers)

    @property
    def attentions(self) -> tuple[AttendingFacts, ...]:
        """The attention of each layer that has one, in order."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, AttendingFacts))

    @property
    def recurrences(self) -> tuple[RecurrentFacts, ...]:
        """The recurrent mixers of all layers, in order."""
        return tuple(mixer for mixer in self.mixers if isinstance(mixer, RecurrentFacts))

    @property
    def widest(self) -> AttendingFacts | None:
        """The first attention without a window, else the first, whose sizes count as the model's; or None."""
        found = self.attentions
        return next((attention for attention in found if not attention.slides), next(iter(found), None))

    @property
    def mlps(self) -> tuple[FeedForwardFacts, ...]:
        """The feed forwards of all layers that have one, in order."""
        return tuple(layer.mlp for layer in self.layers if layer.mlp is not None)


def hyperparameters(facts: ModelFacts) -> Hyperparameters:
    """Return the sizes as the manifest records them; without attention, the heads are a recurrent mixer's."""
    attention = facts.widest
    mlp = facts.layers[attention.index].mlp if attention is not None else None
    mlp = mlp or next(iter(facts.mlps), None)
    if attention is not None:
        heads, kv_heads, head_dim = attention.heads, attention.kv_heads, attention.head_dim
    else:
        mixer = facts.recurrences[0]
        heads, kv_heads, head_dim = mixer.heads, mixer.heads, mixer.inner // mixer.heads
    return Hyperparameters(
        d=facts.hidden_size,
        layers=len(facts.layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ff=mlp.width if mlp is not None else 0,
        vocabulary=facts.vocabulary,
        norm_epsilon=facts.epsilon,
        trained_context=facts.trained_context,
    )


def read_facts(file: GGUFFile) -> ModelFacts:
    """Read the facts of an open GGUF.

    Raises:
        GGUFError: a key is missing or has an invalid value.
        UnsupportedModelError: the architecture, or a feature that the file requests, is not supported.
    """
    return _Reader(file, family_of(file.text("general.architecture"))).facts()


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


class _Reader(MetadataReader):
    def predicting_blocks(self, blocks: int) -> int:
        """Return how many of the last blocks only predict later tokens, and are left out."""
        key = self.key("nextn_predict_layers")
        count = self.file.integer(key, 0)
        if not 0 <= count < max(blocks, 1):
            raise self.corrupt(f"{key!r} is {count}, of {blocks} blocks")
        for index in range(blocks - count, blocks):
            if (name := f"blk.{index}.nextn.eh_proj.weight") not in self.file.tensors:
                raise self.corrupt(
                    f"{key!r} is {count}, so block {index} only predicts later tokens, but there is no "
                    f"tensor {name!r}"
                )
        return count

    def facts(self) -> ModelFacts:
        file, family = self.file, self.family
        hidden_size = file.integer(self.key("embedding_length"))
        blocks = file.integer(self.key("block_count"))
        count = blocks - self.predicting_blocks(blocks)
        epsilon = self.epsilon()
        context = file.integer(self.key("context_length"))
        if not 0 < count <= MOST_LAYERS:
            raise GGUFError(f"{file.path}: claims {count} layers; 1 to {MOST_LAYERS} are sensible")
        if not 0 < epsilon < LARGEST_EPSILON:
            raise self.corrupt(f"the norm's epsilon {epsilon:g} is invalid")
        if not hidden_size or not context:
            raise self.corrupt(f"the embeddings have {hidden_size} numbers, and the context {context} tokens")
        layers, vocabulary = self.layers(hidden_size, count), file.info(EMBEDDING).shape[0]
        widths = [layer.mlp.width for layer in layers if layer.mlp is not None]
        widths += [part.heads * part.head_dim for layer in layers if (part := layer.attention) is not None]
        widest = max([hidden_size, *widths])
        if widest > WIDEST or vocabulary > MOST_TOKENS:
            raise GGUFError(
                f"{file.path}: claims layers of width {widest} and {vocabulary} tokens; at most {WIDEST} and "
                f"{MOST_TOKENS} are sensible"
            )
        return ModelFacts(
            family=family,
            hidden_size=hidden_size,
            vocabulary=vocabulary,
            epsilon=epsilon,
            trained_context=context,
            positions=file.info(POSITION_EMBEDDING).shape[0] if family.learned_positions else None,
            layers=layers,
            left_out=range(count, blocks),
            embedding_scale=self.embedding_scale(hidden_size),
            residual_scale=self.residual_scale(count),
            logit_scale=self.logit_scale(hidden_size),
            attention_softcap=self.softcap("attn_logit_softcapping", family.attention_softcap),
            attention_clamp=self.clamp(),
            logit_softcap=self.softcap("final_logit_softcapping", family.logit_softcap),
            per_layer_width=(
                file.integer(self.key("embedding_length_per_layer_input"), 0)
                if family.per_layer_inputs
                else 0
            ),
            rope_style=self.rope_style(),
        )

    def epsilon(self) -> float:
        """Return the epsilon of norms; Nemotron-H's files may have only that of a LayerNorm, as llama.cpp."""
        rms = self.key("attention.layer_norm_rms_epsilon")
        plain = self.key("attention.layer_norm_epsilon")
        is_plain = self.family.norm_kind is not NormKind.RMS
        if self.family.recurrent is Recurrent.ANY_PART and rms not in self.file.metadata:
            is_plain = True
        return self.file.number(plain if is_plain else rms)

    def clamp(self) -> float | None:
        clamp = self.file.number(self.key("attention.clamp_kqv"), 0.0) if self.family.clamps else 0.0
        if clamp < 0:
            raise self.corrupt(f"{self.key('attention.clamp_kqv')!r} is {clamp:g}")
        return self.factor("attention.clamp_kqv", clamp) if clamp else None

    def residual_scale(self, layers: int) -> float:
        family = self.family
        default = MINICPM_RESIDUAL / math.sqrt(layers) if family.minicpm_scales else 1.0
        if not (family.reads_scales or family.minicpm_scales):
            return default
        return self.factor("residual_scale", self.file.number(self.key("residual_scale"), 0.0) or default)

    def logit_scale(self, hidden_size: int) -> float:
        kind = self.family.logit_scale
        scale = 0.0 if kind is LogitScale.NONE else self.file.number(self.key("logit_scale"), 0.0)
        if not scale and self.family.minicpm_scales:
            scale = MINICPM_WIDTH / hidden_size
        if not scale:
            return 1.0
        return self.factor("logit_scale", 1.0 / scale if kind is LogitScale.DIVISOR else scale)

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
                default = MINICPM_EMBEDDING if self.family.minicpm_scales else 1.0
                scale = self.file.number(self.key("embedding_scale"), 0.0) or default
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

    def layers(self, hidden_size: int, count: int) -> tuple[LayerFacts, ...]:
        none = [0] * count if self.family.recurrent is Recurrent.EVERY_LAYER else None
        heads = self.per_layer("attention.head_count", count, none)
        kv_heads = self.per_layer("attention.head_count_kv", count, heads)
        experts = ExpertsReader(self.file, self.family, self.key)
        # A model may have experts in every layer, and no width of other MLPs.
        widths = self.per_layer("feed_forward_length", count, [0] * count if experts.experts else none)
        attention = AttentionReader(self.file, self.family, hidden_size, count)
        activations = self.activations(count)
        layers = []
        tiled = self.family.recurrent is not Recurrent.GROUPED_DELTA_NET
        for index, found in enumerate(read_parts(self.file, self.family, kv_heads, widths)):
            mixers: list[MixerFacts] = []
            if Part.ATTENTION in found.parts and self.family.latent_attention:
                mixers.append(
                    read_latent(self.file, self.family.architecture, index, heads[index], found.kv_heads)
                )
            elif Part.ATTENTION in found.parts:
                mixers.append(attention.attention(index, heads[index], found.kv_heads))
            if Part.CONVOLUTION in found.parts:
                mixers.append(read_convolution(self.file, self.family.architecture, index, hidden_size))
            if Part.SSD in found.parts:
                mixers.append(read_ssd(self.file, self.family, index))
            if Part.DELTA_NET in found.parts:
                mixers.append(read_delta_net(self.file, self.family.architecture, index, tiled=tiled))
            feed_forward: FeedForwardFacts | None = None
            if Part.MLP in found.parts and experts.is_mixture(index):
                feed_forward = experts.mixture(index, found.width, activations[index])
            elif Part.MLP in found.parts:
                if not found.width:
                    raise self.corrupt(f"an MLP of {found.width} is impossible for a layer")
                feed_forward = MLPFacts(found.width, activations[index])
            layers.append(LayerFacts(index, tuple(mixers), feed_forward))
        if all(isinstance(mixer, ShortConvFacts) for layer in layers for mixer in layer.mixers):
            raise UnsupportedModelError(
                f"{self.file.path}: has no layer with attention, which the block graph needs"
            )
        return tuple(layers)

    def activations(self, count: int) -> Sequence[LayerActivation]:
        """Return each layer's activation; the file has xIELU's factors before softplus, without a prefix."""
        if self.family.activation is not Activation.XIELU:
            return [self.family.activation] * count
        given = [self.factors(f"xielu.{name}", count) for name in ("alpha_p", "alpha_n", "beta")]
        found = []
        for square, exponential, linear in zip(*given, strict=True):
            factors = XIELU(_softplus(square), linear + _softplus(exponential), linear)
            if not max(factors.square, factors.exponential, abs(linear)) <= LARGEST_FACTOR:
                raise self.corrupt(
                    f"the factors of xIELU {square:g}, {exponential:g} and {linear:g} are too large"
                )
            found.append(factors)
        return found
