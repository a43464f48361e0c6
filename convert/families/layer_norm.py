"""Families with LayerNorm: `starcoder2`, `stablelm`, `phi2`, `falcon`, `nemotron`, `olmo`.

https://github.com/ggml-org/llama.cpp, src/models
"""

from anespec.convert.families.family import Activation, Family, HeadNorm, NormKind, Norms, RopeStyle

STARCODER2 = Family(
    architecture="starcoder2",
    title="StarCoder 2",
    rope_style=RopeStyle.NEOX,
    norm_kind=NormKind.LAYER,
    gated=False,
    activation=Activation.GELU,
)

STABLELM = Family(
    architecture="stablelm",
    title="StableLM 2 and 3B",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.LAYER_BEFORE_ROPE,
    norm_kind=NormKind.LAYER,
    parallel=True,
)

PHI2 = Family(
    architecture="phi2",
    title="Phi-1, Phi-1.5, Phi-2",
    rope_style=RopeStyle.NEOX,
    norms=Norms(mlp=None),
    norm_kind=NormKind.LAYER,
    parallel=True,
    gated=False,
    activation=Activation.GELU,
)

FALCON = Family(
    architecture="falcon",
    title="Falcon 7B, 40B and 180B",
    rope_style=RopeStyle.NEOX,
    norms=Norms(attention_alone="attn_norm_2", mlp=None),
    norm_kind=NormKind.LAYER,
    parallel=True,
    gated=False,
    activation=Activation.GELU,
)

# The file's norm weights are those of LayerNorm1p plus 1.
NEMOTRON = Family(
    architecture="nemotron",
    title="Nemotron 3 and 4, Minitron",
    rope_style=RopeStyle.NEOX,
    norm_kind=NormKind.LAYER,
    gated=False,
    activation=Activation.RELU_SQUARED,
)

OLMO = Family(
    architecture="olmo",
    title="OLMo 1",
    rope_style=RopeStyle.GPTJ,
    norm_kind=NormKind.LAYER_WEIGHTLESS,
    clamps=True,
)

GPT2 = Family(
    architecture="gpt2",
    title="GPT-2",
    rope_style=RopeStyle.NEOX,
    norm_kind=NormKind.LAYER,
    gated=False,
    activation=Activation.GELU,
    learned_positions=True,
    rope_free_step=1,
)
