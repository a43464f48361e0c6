"""What distinguishes one model family from another, as data.

Tensor names are GGUF's own (https://github.com/ggml-org/llama.cpp, gguf-py constants): they are the
same for every family, so a family only says which of them it has and what they mean. What a number in
a GGUF means is what llama.cpp computes with it; facts that stand in no GGUF are taken from there.
"""

from dataclasses import dataclass
from enum import StrEnum


class RopeStyle(StrEnum):
    """The rows of q and k within a head that rotate together, in the GGUF's order.

    `GPTJ`: rows 2i and 2i + 1 (GGML calls it NORM). `NEOX`: rows i and i + rotary_dim / 2. The block graph
    always uses neox; the converter permutes rows.
    """

    GPTJ = "gptj"
    NEOX = "neox"


class Activation(StrEnum):
    """The function on the MLP's gate."""

    SILU = "silu"
    GELU = "gelu"
    """The tanh approximation, as in GGML."""


class HeadNorm(StrEnum):
    """Where q and k are normalised, if at all."""

    NONE = "none"
    BEFORE_ROPE = "before rope"
    """Each head by itself."""
    AFTER_ROPE = "after rope"
    """Each head by itself."""
    ALL_HEADS = "all heads"
    """All heads of a token together, before rope."""


class WeightlessNorm(StrEnum):
    """Whether V is normalised, without a weight."""

    NONE = "none"
    EACH_HEAD = "each head"


class EmbeddingScale(StrEnum):
    """The factor of the embedding rows."""

    NONE = "none"
    SQRT_WIDTH = "sqrt(d)"
    KEY = "key"
    """The key `embedding_scale` of the file."""


class SlidingRope(StrEnum):
    """The rope of sliding-window layers, where a model has layers with and without a window."""

    SAME = "same"
    """That of the others."""
    OWN = "own"
    """A base of its own, not scaled; the others' factor on cos and sin holds."""
    PLAIN = "plain"
    """The others' base, and nothing else."""


@dataclass(frozen=True)
class SlidingPattern:
    """Which layers see only the last `attention.sliding_window` positions.

    Of every `period` layers all but the last do, unless `attention.sliding_window_pattern` gives another
    period or says it layer by layer; without a period that key must be there. `window` stands in for a
    missing key; without either, no layer has a window. `of_layers`: only models of so many layers slide.
    A base of their own is the key `rope.freq_base_swa`, or else `rope_base`, or else the common one. With
    `only_sliding_rotate` the layers of such a model that do not slide have no rope.
    """

    period: int | None
    window: int | None = None
    rope: SlidingRope = SlidingRope.OWN
    rope_base: float | None = None
    only_sliding_rotate: bool = False
    of_layers: int | None = None


@dataclass(frozen=True)
class Norms:
    """The roles of a layer's RMSNorms; None where the layer has no norm at that place.

    Before attention and MLP, and on what they return, before it is added to the hidden state.
    """

    attention: str | None = "attn_norm"
    after_attention: str | None = None
    mlp: str | None = "ffn_norm"
    after_mlp: str | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(
            role for role in (self.attention, self.after_attention, self.mlp, self.after_mlp) if role
        )


@dataclass(frozen=True)
class Family:
    """One `general.architecture` of GGUF, as far as it differs from a plain Llama layer.

    `attention_scale` multiplies the scores instead of 1 / sqrt(head_dim). Models of
    `wide_scale_layers` layers use 1 / sqrt(d / heads). With `reads_scales` the keys `attention.scale`,
    `residual_scale` and `logit_scale` hold. Every `rope_free_step`-th layer has no rope.
    `attention_softcap` and `logit_softcap` hold where the file gives none: cap * tanh(x / cap); 0 caps
    nothing. Families of None have no cap, whatever the file says. With `tunes_yarn` the keys of YaRN's betas
    and of its `yarn_log_multiplier` hold. `rope_switch`: the key `rope.scaling.finetuned` may turn rope off.
    With `sections_mean_neox` files that have `rope.dimension_sections` are of the style neox.
    With `key_is_value` a layer without V projection uses K's. `layer_scale`: a layer's output may be
    multiplied by a number of its own. `per_layer_inputs`: embeddings may feed every layer.

    The graph keeps the hidden state times `hidden_scale`, a power of two, where the model's own would leave
    fp16's range. That needs norms after attention and MLP, which take in the factor.
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
        # Every family is made when the package is imported, so what is wrong here meets no user.
        # K's rows are reordered for its rope; V's must not be.
        assert not self.key_is_value or self.rope_style is RopeStyle.NEOX
        assert self.hidden_scale == 1 or (self.norms.after_attention and self.norms.after_mlp)
        # Scores grow through the rope rows of queries, which a norm after it would undo.
        assert not self.score_temperature or self.head_norm is not HeadNorm.AFTER_ROPE
