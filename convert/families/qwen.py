"""`qwen2` (biases on q, k and v), `qwen3` (norms on q and k instead), and the text parts of their VL models.

`qwen35`: three layers in four have a gated delta net, the others a gate on attention's output.

Without images all sections of a Qwen-VL's rope have the same position, so its rope is the plain one.
"""

from dataclasses import replace

from anespec.convert.families.family import Family, HeadNorm, Norms, Recurrent, RopeStyle
from anespec.convert.families.mixture import Mixture

QWEN2 = Family(
    architecture="qwen2",
    title="Qwen 2 and 2.5",
    rope_style=RopeStyle.NEOX,
)

QWEN2MOE = replace(
    QWEN2,
    architecture="qwen2moe",
    title="Qwen 1.5 and 2 with experts",
    mixture=Mixture(renormalised=False, shared=True, shared_gate=True),
)

QWEN2VL = replace(QWEN2, architecture="qwen2vl", title="Qwen 2-VL and 2.5-VL (text)")

QWEN3 = Family(
    architecture="qwen3",
    title="Qwen 3",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.BEFORE_ROPE,
)

QWEN35 = Family(
    architecture="qwen35",
    title="Qwen 3.5 and 3.6 (dense, text)",
    rope_style=RopeStyle.NEOX,
    norms=Norms(mlp="post_attention_norm"),
    head_norm=HeadNorm.BEFORE_ROPE,
    gate_beside_query=True,
    recurrent=Recurrent.DELTA_NET,
    # Hidden states of the 27B leave fp16's range (B: ANEForge#51); smaller ones were run without a factor.
    large_hidden_scale=(5120, 1 / 16),
)

QWEN35MOE = replace(
    QWEN35,
    architecture="qwen35moe",
    title="Qwen 3.5 and 3.6 with experts (text)",
    mixture=Mixture(shared=True, shared_gate=True),
)

QWEN3NEXT = replace(
    QWEN35MOE,
    architecture="qwen3next",
    title="Qwen 3 Next",
    recurrent=Recurrent.GROUPED_DELTA_NET,
)

QWEN3MOE = replace(QWEN3, architecture="qwen3moe", title="Qwen 3 with experts", mixture=Mixture())

QWEN3VL = replace(QWEN3, architecture="qwen3vl", title="Qwen 3-VL (text)")
