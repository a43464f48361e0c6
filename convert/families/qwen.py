"""`qwen2` (biases on q, k and v), `qwen3` (norms on q and k instead), and the text parts of their VL models.

Without images all sections of a Qwen-VL's rope have the same position, so its rope is the plain one.
"""

from dataclasses import replace

from anespec.convert.families.family import Family, HeadNorm, RopeStyle

QWEN2 = Family(
    architecture="qwen2",
    title="Qwen 2 and 2.5",
    rope_style=RopeStyle.NEOX,
)

QWEN2VL = replace(QWEN2, architecture="qwen2vl", title="Qwen 2-VL and 2.5-VL (text)")

QWEN3 = Family(
    architecture="qwen3",
    title="Qwen 3",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.BEFORE_ROPE,
)

QWEN3VL = replace(QWEN3, architecture="qwen3vl", title="Qwen 3-VL (text)")
