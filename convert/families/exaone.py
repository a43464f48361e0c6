"""`exaone`, a Llama with rows in another order, and `exaone4`.

`exaone4` has norms after attention and MLP and on q and k, and rope only in sliding layers.
"""

from anespec.convert.families.family import (
    Family,
    HeadNorm,
    Norms,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)

EXAONE = Family(
    architecture="exaone",
    title="EXAONE 3",
    rope_style=RopeStyle.NEOX,
)

EXAONE4 = Family(
    architecture="exaone4",
    title="EXAONE 4",
    rope_style=RopeStyle.NEOX,
    norms=Norms(attention=None, after_attention="post_attention_norm", mlp=None, after_mlp="post_ffw_norm"),
    head_norm=HeadNorm.BEFORE_ROPE,
    sliding=SlidingPattern(
        period=4, window=4096, rope=SlidingRope.SAME, only_sliding_rotate=True, of_layers=64
    ),
)
