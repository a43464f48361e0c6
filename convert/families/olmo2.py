"""`olmo2`: OLMo 2 and 3: norms only after attention and MLP, and over all heads of q and k at once."""

from anespec.convert.families.family import (
    Family,
    HeadNorm,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)

OLMO2 = Family(
    architecture="olmo2",
    title="OLMo 2 and 3",
    rope_style=RopeStyle.NEOX,
    norms=Norms(attention=None, after_attention="post_attention_norm", mlp=None, after_mlp="post_ffw_norm"),
    head_norm=HeadNorm.ALL_HEADS,
    sliding=SlidingPattern(period=4, rope=SlidingRope.PLAIN),
)
