"""`command-r`, `cohere2`: LayerNorm without bias, attention and MLP in parallel, and scaled logits.

https://github.com/ggml-org/llama.cpp, src/models/command-r.cpp and cohere2.cpp
"""

from anespec.convert.families.family import (
    Family,
    HeadNorm,
    LogitScale,
    NormKind,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)

COMMAND_R = Family(
    architecture="command-r",
    title="Command R, Command R+",
    rope_style=RopeStyle.GPTJ,
    head_norm=HeadNorm.LAYER_BEFORE_ROPE,
    norms=Norms(mlp=None),
    norm_kind=NormKind.LAYER,
    parallel=True,
    logit_scale=LogitScale.FACTOR,
)

COHERE2 = Family(
    architecture="cohere2",
    title="Command R7B, Command A, Aya",
    rope_style=RopeStyle.GPTJ,
    norms=Norms(mlp=None),
    norm_kind=NormKind.LAYER,
    parallel=True,
    logit_scale=LogitScale.FACTOR,
    sliding=SlidingPattern(period=4, rope=SlidingRope.SAME, only_sliding_rotate=True),
)
