"""Describe how model families differ, as data.

Tensor names are GGUF's own (https://github.com/ggml-org/llama.cpp, gguf-py constants). They are the same for
every family, so a `Family` only says which of them it has and how the graph uses them. llama.cpp defines the
meaning of every number in a GGUF, and is the source of facts that a GGUF does not contain.
"""

from dataclasses import dataclass
from enum import StrEnum


class RopeStyle(StrEnum):
    """Which rows of q and k rotate together within a head, in the GGUF's order.

    `GPTJ`: rows 2i and 2i + 1 (GGML's NORM). `NEOX`: rows i and i + rotary_dim / 2. The graph always uses
    neox; the converter permutes rows.
    """

    GPTJ = "gptj"
    NEOX = "neox"


class Activation(StrEnum):
    """The activation function of the MLP's gate."""

    SILU = "silu"
    GELU = "gelu"
    """The tanh approximation, as in GGML."""


class HeadNorm(StrEnum):
    """Whether and where q and k are normalised."""

    NONE = "none"
    BEFORE_ROPE = "before rope"
    """Each head separately, before rope."""
    AFTER_ROPE = "after rope"
    """Each head separately, after rope."""
    ALL_HEADS = "all heads"
    """All heads of a token together, before rope."""


class WeightlessNorm(StrEnum):
    """Whether V is normalised. The norm has no weight."""

    NONE = "none"
    EACH_HEAD = "each head"


class EmbeddingScale(StrEnum):
    """The factor by which embedding rows are multiplied."""

    NONE = "none"
    SQRT_WIDTH = "sqrt(d)"
    KEY = "key"
    """The value of the key `embedding_scale` in the file."""


class SlidingRope(StrEnum):
    """The rope of sliding-window layers, if a model also has layers without a window."""

    SAME = "same"
    """The same as in the other layers."""
    OWN = "own"
    """A base of its own without scaling, and the other layers' factor on cos and sin."""
    PLAIN = "plain"
    """The other layers' base, without scaling and factor."""


@dataclass(frozen=True)
class SlidingPattern:
    """Which layers slide: they see only the last `attention.sliding_window` positions.

    Of every `period` layers all but the last slide. The key `attention.sliding_window_pattern` may give
    another period, or a flag for each layer; if `period` is None, the file must have that key. `window` is
    the default for a missing key `attention.sliding_window`; without both, no layer slides. With `of_layers`
    only models of this number of layers slide. The rope base of sliding layers (`SlidingRope.OWN`) is the key
    `rope.freq_base_swa`, else `rope_base`, else the model's base. With `only_sliding_rotate` the other layers
    of a sliding model have no rope.
    """

    period: int | None
    window: int | None = None
    rope: SlidingRope = SlidingRope.OWN
    rope_base: float | None = None
    only_sliding_rotate: bool = False
    of_layers: int | None = None


@dataclass(frozen=True)
class Norms:
    """The GGUF names of a layer's RMSNorms: before attention and MLP, and on their outputs.

    The latter are applied before the output is added to the hidden state. None means no norm at that place.
    """

    attention: str | None = "attn_norm"
    after_attention: str | None = None
    mlp: str | None = "ffn_norm"
    after_mlp: str | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the norms that exist."""
        return tuple(
            role for role in (self.attention, self.after_attention, self.mlp, self.after_mlp) if role
        )


@dataclass(frozen=True)
class Family:
    """A `general.architecture` of GGUF: its differences from a plain Llama.

    Attention: `attention_scale` multiplies the scores instead of 1 / sqrt(head_dim); models of
    `wide_scale_layers` layers use 1 / sqrt(hidden_size / heads). With `key_is_value` a layer without a V
    projection uses K's. `score_temperature`: scores may grow with the position.

    Rope: every `rope_free_step`-th layer has none. `rope_switch`: the key `rope.scaling.finetuned` may turn
    rope off. With `sections_mean_neox` files with `rope.dimension_sections` have the style neox. With
    `tunes_yarn` the keys for YaRN's betas and its `yarn_log_multiplier` are read.

    Scales: with `reads_scales` the keys `attention.scale`, `residual_scale` and `logit_scale` are read.
    `attention_softcap` and `logit_softcap` are the defaults of the file's caps, cap * tanh(x / cap); 0 means
    no cap by default, None that the file's keys are ignored, too. `layer_scale`: a layer's output may be
    multiplied by a number of its own. `per_layer_inputs`: embeddings may be an input of every layer.

    The graph keeps the hidden state times `hidden_scale`, a power of two, if the model's own values would
    exceed fp16's range. That needs norms after attention and MLP, whose weights include the factor.
    """

    architecture: str
    title: str
    rope_style: RopeStyle
    norms: Norms = Norms()
    head_norm: HeadNorm = HeadNorm.NONE
    value_norm: WeightlessNorm = WeightlessNorm.NONE
    activation: Activation = Activation.SILU
    embedding_scale: EmbeddingScale = EmbeddingScale.NONE
    attention_scale: float | None = None
    wide_scale_layers: int | None = None
    reads_scales: bool = False
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    sliding: SlidingPattern | None = None
    rope_free_step: int | None = None
    rope_switch: bool = False
    sections_mean_neox: bool = False
    tunes_yarn: bool = False
    score_temperature: bool = False
    key_is_value: bool = False
    layer_scale: bool = False
    per_layer_inputs: bool = False
    hidden_scale: float = 1.0

    def __post_init__(self) -> None:
        # All families are constructed at import, so a failing assertion shows in every test.
        # The rows of K are reordered for rope, and those of V must not be.
        assert not self.key_is_value or self.rope_style is RopeStyle.NEOX
        assert self.hidden_scale == 1 or (self.norms.after_attention and self.norms.after_mlp)
        # The rope rows of queries contain the growth of scores; a norm after rope would undo it.
        assert not self.score_temperature or self.head_norm is not HeadNorm.AFTER_ROPE
