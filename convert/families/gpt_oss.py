"""`gpt-oss`: sinks, a clamped SwiGLU, biases everywhere, and every other layer slides."""

from anespec.convert.families.family import (
    Activation,
    Family,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)
from anespec.convert.families.mixture import Mixture

GPT_OSS = Family(
    architecture="gpt-oss",
    title="GPT-OSS",
    rope_style=RopeStyle.NEOX,
    norms=Norms(mlp="post_attention_norm"),
    activation=Activation.CLAMPED_SWIGLU,
    sinks=True,
    sliding=SlidingPattern(period=2, rope=SlidingRope.SAME),
    mixture=Mixture(),
)
