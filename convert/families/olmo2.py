"""`olmo2`, `olmoe`: norms over all heads of q and k at once, and in `olmo2` only after attention and MLP."""

from anespec.convert.families.family import (
    Family,
    HeadNorm,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)
from anespec.convert.families.mixture import Mixture

OLMO2 = Family(
    architecture="olmo2",
    title="OLMo 2 and 3",
    rope_style=RopeStyle.NEOX,
    norms=Norms(attention=None, after_attention="post_attention_norm", mlp=None, after_mlp="post_ffw_norm"),
    head_norm=HeadNorm.ALL_HEADS,
    sliding=SlidingPattern(period=4, rope=SlidingRope.PLAIN),
)

OLMOE = Family(
    architecture="olmoe",
    title="OLMoE",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.ALL_HEADS,
    mixture=Mixture(width_key="feed_forward_length", renormalised=False),
)
