"""`gemma`, `gemma2`, `gemma3` and `gemma4` (text).

Their norms add 1 to the weight; in a GGUF the weight includes that 1. If a file of Gemma 4 lacks the key for
the logits' cap, logits are not capped, as in transformers; llama.cpp would cap them at 30. Published files
have the key.
"""

from anespec.convert.families.family import (
    Activation,
    EmbeddingScale,
    Family,
    HeadNorm,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
    WeightlessNorm,
)
from anespec.convert.families.mixture import Mixture

HIDDEN_SCALE = 1 / 32
"""Hidden states of the larger models are reported to reach 800,000 in fp32; fp16's maximum is 65,504."""

NORMS = Norms(after_attention="post_attention_norm", after_mlp="post_ffw_norm")

GEMMA = Family(
    architecture="gemma",
    title="Gemma",
    rope_style=RopeStyle.NEOX,
    activation=Activation.GELU,
    embedding_scale=EmbeddingScale.SQRT_WIDTH,
)

GEMMA2 = Family(
    architecture="gemma2",
    title="Gemma 2",
    rope_style=RopeStyle.NEOX,
    norms=NORMS,
    hidden_scale=HIDDEN_SCALE,
    activation=Activation.GELU,
    embedding_scale=EmbeddingScale.SQRT_WIDTH,
    wide_scale_layers=46,
    attention_softcap=50.0,
    logit_softcap=30.0,
    sliding=SlidingPattern(period=2, window=4096, rope=SlidingRope.SAME),
)

GEMMA3 = Family(
    architecture="gemma3",
    title="Gemma 3 (text)",
    rope_style=RopeStyle.NEOX,
    norms=NORMS,
    hidden_scale=HIDDEN_SCALE,
    head_norm=HeadNorm.BEFORE_ROPE,
    activation=Activation.GELU,
    embedding_scale=EmbeddingScale.SQRT_WIDTH,
    wide_scale_layers=62,
    logit_softcap=0.0,
    sliding=SlidingPattern(period=6, rope_base=10000.0),
)

GEMMA4 = Family(
    architecture="gemma4",
    title="Gemma 4 (text)",
    rope_style=RopeStyle.NEOX,
    norms=NORMS,
    hidden_scale=HIDDEN_SCALE,
    head_norm=HeadNorm.BEFORE_ROPE,
    value_norm=WeightlessNorm.EACH_HEAD,
    activation=Activation.GELU,
    embedding_scale=EmbeddingScale.SQRT_WIDTH,
    attention_scale=1.0,
    logit_softcap=0.0,
    sliding=SlidingPattern(period=None, rope_base=10000.0),
    key_is_value=True,
    layer_scale=True,
    per_layer_inputs=True,
    mixture=Mixture(apart=True),
)
