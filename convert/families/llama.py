"""`llama` (in GGUF also Mistral, Bielik and others), and families that differ from it in few fields."""

from dataclasses import replace

from anespec.convert.families.family import (
    Activation,
    Family,
    HeadNorm,
    LogitScale,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)
from anespec.convert.families.mixture import Gating, Mixture

HUNYUAN_DENSE = Family(
    architecture="hunyuan-dense",
    title="Hunyuan (dense), Hy-MT",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.AFTER_ROPE,
)


SMOLLM3 = Family(
    architecture="smollm3",
    title="SmolLM 3",
    rope_style=RopeStyle.GPTJ,
    rope_free_step=4,
)


SEED_OSS = Family(
    architecture="seed_oss",
    title="Seed-OSS",
    rope_style=RopeStyle.NEOX,
    norms=Norms(mlp="post_attention_norm"),
)


# `ernie4_5`: the dense ERNIE 4.5, a Llama under another name.

ERNIE4_5 = Family(
    architecture="ernie4_5",
    title="ERNIE 4.5 (dense)",
    rope_style=RopeStyle.GPTJ,
)


ERNIE4_5_MOE = replace(
    ERNIE4_5,
    architecture="ernie4_5-moe",
    title="ERNIE 4.5 with experts",
    mixture=Mixture(dense_layers=True, selection_bias=True, shared=True),
)


# `xverse`: a Llama under another name.

XVERSE = Family(
    architecture="xverse",
    title="XVERSE",
    rope_style=RopeStyle.GPTJ,
)


# `internlm2`: a Llama under another name.

INTERNLM2 = Family(
    architecture="internlm2",
    title="InternLM 2 and 2.5",
    rope_style=RopeStyle.GPTJ,
)


# `arcee`: a Llama whose MLP has no gate.

ARCEE = Family(
    architecture="arcee",
    title="Arcee AFM",
    rope_style=RopeStyle.GPTJ,
    gated=False,
    activation=Activation.RELU_SQUARED,
)


# `apertus`: norms on q and k, and an MLP without a gate, with xIELU.

APERTUS = Family(
    architecture="apertus",
    title="Apertus",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.BEFORE_ROPE,
    gated=False,
    activation=Activation.XIELU,
)


# `mistral3`: YaRN with numbers of its own, and scores that grow with the position.

MISTRAL3 = Family(
    architecture="mistral3",
    title="Ministral 3, Mistral Small 3.2",
    rope_style=RopeStyle.GPTJ,
    score_temperature=True,
    tunes_yarn=True,
)


LLAMA = Family(
    architecture="llama",
    title="Llama (also Mistral, Mixtral, SmolLM, Bielik, DeepSeek-LLM …)",
    rope_style=RopeStyle.GPTJ,
    mixture=Mixture(width_key="feed_forward_length"),
)

LFM2 = Family(
    architecture="lfm2",
    title="LFM2",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.BEFORE_ROPE,
    short_convolution=True,
    final_norm="token_embd_norm",
)

LFM2MOE = replace(
    LFM2,
    architecture="lfm2moe",
    title="LFM2 with experts",
    mixture=Mixture(gating=Gating.SIGMOID, reads_gating=True, dense_layers=True, selection_bias=True),
)


# A sliding window in the file is ignored, as in llama.cpp: models without one have the key, too.

PHI3 = Family(
    architecture="phi3",
    title="Phi-3, Phi-4-mini",
    rope_style=RopeStyle.NEOX,
)


MUSE_GLIMMER = Family(
    architecture="muse-glimmer",
    title="Muse Glimmer",
    rope_style=RopeStyle.GPTJ,
    norms=Norms(after_attention="post_attention_norm", after_mlp="post_ffw_norm"),
    branch_epsilon=1e-8,
    head_norm=HeadNorm.BEFORE_ROPE,
    output_gate=True,
    norms_embedding=True,
    logit_scale=LogitScale.FACTOR,
    logit_softcap=0.0,
    sliding=SlidingPattern(period=4, only_sliding_rotate=True),
)


# `spark2_5`: an output gate with a number for each head, and sliding windows.

SPARK = Family(
    architecture="spark2_5",
    title="Spark 2.5",
    rope_style=RopeStyle.NEOX,
    output_gate=True,
    gates_heads=True,
    activation=Activation.GELU,
    sliding=SlidingPattern(period=None, rope=SlidingRope.OWN_BASE),
)
