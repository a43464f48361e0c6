"""`qwen2` (biases on q, k and v) and `qwen3` (norms on q and k instead)."""

from anespec.convert.architectures.family import Family, HeadNorm, RopeLayout

QWEN2 = Family(
    architecture="qwen2",
    title="Qwen 2 and 2.5",
    rope_layout=RopeLayout.HALVES,
)

QWEN3 = Family(
    architecture="qwen3",
    title="Qwen 3",
    rope_layout=RopeLayout.HALVES,
    head_norm=HeadNorm.BEFORE_ROPE,
)
