"""Describe how model families differ, as data.

Tensor names are GGUF's own (https://github.com/ggml-org/llama.cpp, gguf-py constants). They are the same for
every family, so a `Family` only says which of them it has and how the graph uses them. llama.cpp defines the
meaning of every number in a GGUF, and is the source of facts that a GGUF does not contain.
"""

from dataclasses import dataclass
from enum import StrEnum

from anespec.convert.families.mixture import Mixture
from anespec.convert.source.added_field import added_field


class RopeStyle(StrEnum):
    """Which rows of q and k rotate together within a head, in the GGUF's order.

    `GPTJ`: rows 2i and 2i + 1 (GGML's NORM). `NEOX`: rows i and i + rotary_dim / 2. The graph always uses
    neox; the converter permutes rows.
    """

    GPTJ = "gptj"
    NEOX = "neox"


class Activation(StrEnum):
    """The activation function of the MLP's gate, or of its only projection up."""

    SILU = "silu"
    GELU = "gelu"
    """The tanh approximation, as in GGML."""
    RELU_SQUARED = "relu squared"
    """max(x, 0)^2."""
    CLAMPED_SWIGLU = "clamped swiglu"
    """With both projections: gate * sigmoid(1.702 gate) * (up + 1), gate at most 7 and up within -7 to 7."""
    XIELU = "xielu"
    """A square above zero and an exponential below, with factors for each layer (`XIELU`)."""


@dataclass(frozen=True)
class XIELU:
    """xIELU with a layer's factors (https://arxiv.org/abs/2411.13010).

    It is square * x^2 + linear * x for x > 0, and exponential * (exp(x) - 1 - x) + linear * x below.
    """

    square: float
    exponential: float
    linear: float


LayerActivation = Activation | XIELU
"""The activation function of one layer: one without factors, or xIELU with the layer's."""


class Recurrent(StrEnum):
    """Which layers of a model are recurrent, and what such a layer has beside its recurrent mixer."""

    EVERY_LAYER = "every layer"
    """Every layer is a Mamba 2, without an MLP."""
    WITHOUT_KV = "without KV heads"
    """Layers without KV heads have Mamba 2 in place of attention."""
    BESIDE_ATTENTION = "beside attention"
    """Every layer has both attention and Mamba 2, which read one norm and are added up."""
    ANY_PART = "any part"
    """A layer is Mamba 2, attention or an MLP alone."""
    DELTA_NET = "delta net"
    """All layers but every fourth have a gated delta net in place of attention; keys may say otherwise."""
    GROUPED_DELTA_NET = "grouped delta net"
    """The same, with consecutive value heads that share a key head."""


class NormKind(StrEnum):
    """The norms over the hidden state, the final one included."""

    RMS = "rms"
    LAYER = "layer"
    """LayerNorm: the mean is subtracted first. The file may have a bias for each norm."""
    LAYER_WEIGHTLESS = "layer, without weights"
    """LayerNorm without weight and bias."""


class LogitScale(StrEnum):
    """The meaning of the key `logit_scale`."""

    NONE = "none"
    """The key is not read."""
    DIVISOR = "divisor"
    FACTOR = "factor"


class HeadNorm(StrEnum):
    """Whether and where q and k are normalised."""

    NONE = "none"
    BEFORE_ROPE = "before rope"
    """Each head separately, before rope."""
    AFTER_ROPE = "after rope"
    """Each head separately, after rope."""
    LAYER_BEFORE_ROPE = "layer before rope"
    """By a LayerNorm with weights for each head, before rope; only if the file has these weights."""
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
    OWN_BASE = "own base"
    """A base of its own, all else as in the other layers."""
    PLAIN = "plain"
    """The other layers' base, without scaling and factor."""


@dataclass(frozen=True)
class SlidingPattern:
    """Which layers slide: they see only the last `attention.sliding_window` positions.

    Of every `period` layers all but the last slide. The key `attention.sliding_window_pattern` may give
    another period, or a flag for each layer; if `period` is None, the file must have that key. `window` is
    the default for a missing key `attention.sliding_window`; without both, no layer slides. With
    `of_layers` only models of this number of layers slide. A rope base of their own is the key
    `rope.freq_base_swa`, else `rope_base`, else the model's base. With `only_sliding_rotate` the other
    layers of a sliding model have no rope.
    """

    period: int | None
    window: int | None = None
    rope: SlidingRope = SlidingRope.OWN
    rope_base: float | None = None
    only_sliding_rotate: bool = False
    of_layers: int | None = None


@dataclass(frozen=True)
class Norms:
    """The GGUF names of a layer's norms: before attention and MLP, and on their outputs.

    The latter are applied before the output is added to the hidden state. None means no norm at that place;
    an MLP in parallel with attention then reads attention's. If a file has a norm `attention_alone`, that one
    is attention's, and the MLP reads the norm `attention`.
    """

    attention: str | None = "attn_norm"
    attention_alone: str | None = None
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
    projection uses K's. `score_temperature`: scores may grow with the position. With `clamps` q, k and v are
    clamped to the key `attention.clamp_kqv`.

    Rope: every `rope_free_step`-th layer has none. `rope_switch`: the key `rope.scaling.finetuned` may turn
    rope off. `rope_pattern`: the key `attention.rope_pattern` may say which layers have it. With
    `sections_mean_neox` files with `rope.dimension_sections` have the style neox. With `tunes_yarn` the
    keys for YaRN's betas and its `yarn_log_multiplier` are read.

    Layers: with `parallel` attention and MLP read the same hidden state through one norm, and both are
    added to it. If the family has a norm before the MLP, only models without that tensor are parallel. An
    MLP that is not `gated` is down(activation(up(x))). With `output_gate` the heads' outputs are multiplied
    by the sigmoid of a projection of attention's input, which with `gates_heads` has one row for each head;
    with `gate_beside_query` the rows of that projection are in q's, behind each head's own. With `sinks`
    each head has one more score, of a key without a value. With `latent_attention` the keys and values of
    all heads are made of one latent of each row. `branch_epsilon` is the epsilon of the norms after
    attention and MLP, None means the file's.

    With `short_convolution` layers without KV heads have a gated short convolution in place of attention.
    `recurrent` says which layers are recurrent, None that no layer is. With `bare_mamba` the output of
    Mamba 2 may have no norm. With a `mixture` layers of models with experts have a mixture of experts in
    place of an MLP. Blocks that only predict later tokens (`nextn_predict_layers`) are left out.

    Scales: with `reads_scales` the keys `attention.scale` and `residual_scale` are read. `minicpm_scales`:
    the scales of embeddings, residual additions and logits have MiniCPM's numbers as defaults.
    `attention_softcap` and `logit_softcap` are the defaults of the file's caps, cap * tanh(x / cap); 0 means
    no cap by default, None that the file's keys are ignored, too. With `norms_embedding` embedding rows are
    normalised by an RMSNorm without a weight before they are scaled. With `learned_positions` each position
    has a row of a table, which is added to the token's. `layer_scale`: a layer's output may be
    multiplied by a number of its own. `per_layer_inputs`: embeddings may be an input of every layer.

    `final_norm` is the GGUF name of the norm before the output projection.

    The graph keeps the hidden state times `hidden_scale`, a power of two, where the model's own values would
    exceed fp16's range. `large_hidden_scale` is a hidden size, and the factor of models from that size on.
    """

    architecture: str
    title: str
    rope_style: RopeStyle
    norms: Norms = Norms()
    norm_kind: NormKind = NormKind.RMS
    parallel: bool = False
    gated: bool = True
    output_gate: bool = False
    gates_heads: bool = added_field(False)
    gate_beside_query: bool = False
    sinks: bool = False
    latent_attention: bool = added_field(False)
    short_convolution: bool = False
    recurrent: Recurrent | None = None
    bare_mamba: bool = added_field(False)
    mixture: Mixture | None = None
    branch_epsilon: float | None = None
    head_norm: HeadNorm = HeadNorm.NONE
    value_norm: WeightlessNorm = WeightlessNorm.NONE
    activation: Activation = Activation.SILU
    embedding_scale: EmbeddingScale = EmbeddingScale.NONE
    norms_embedding: bool = False
    learned_positions: bool = False
    attention_scale: float | None = None
    wide_scale_layers: int | None = None
    reads_scales: bool = False
    minicpm_scales: bool = False
    logit_scale: LogitScale = LogitScale.NONE
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    sliding: SlidingPattern | None = None
    rope_free_step: int | None = None
    rope_switch: bool = False
    rope_pattern: bool = added_field(False)
    sections_mean_neox: bool = False
    tunes_yarn: bool = False
    score_temperature: bool = False
    clamps: bool = False
    key_is_value: bool = False
    layer_scale: bool = False
    per_layer_inputs: bool = False
    hidden_scale: float = 1.0
    large_hidden_scale: tuple[int, float] | None = added_field(None)
    final_norm: str = "output_norm"

    @property
    def query_parts(self) -> int:
        """The parts of a head in the projection of queries: the query alone, or its gate, too."""
        return 2 if self.gate_beside_query else 1

    def __post_init__(self) -> None:
        # All families are constructed at import, so a failing assertion shows in every test.
        # Q's rows would be reordered with the gate's between them.
        assert not self.gate_beside_query or self.rope_style is RopeStyle.NEOX
        assert not (self.gate_beside_query and self.output_gate)
        # The rows of K are reordered for rope, and those of V must not be.
        assert not self.key_is_value or self.rope_style is RopeStyle.NEOX
        # Inputs of layers are made of the first hidden state, which then would need positions.
        assert not (self.learned_positions and self.per_layer_inputs)
        # The converter reorders the rows of pairs that are side by side.
        assert not self.latent_attention or self.rope_style is RopeStyle.GPTJ
        # Rows of positions would need the factor, too.
        assert self.hidden_scale == 1 or not self.learned_positions
        # The rope rows of queries contain the growth of scores; a norm after rope would undo it.
        assert not self.score_temperature or self.head_norm is not HeadNorm.AFTER_ROPE
