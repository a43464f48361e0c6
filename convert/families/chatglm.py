"""`chatglm`: ChatGLM 3 and GLM-4-9B: q, k, v and gate, up fused; rope on half of each head."""

from anespec.convert.families.family import Family, RopeStyle

CHATGLM = Family(
    architecture="chatglm",
    title="ChatGLM 3, GLM-4-9B",
    rope_style=RopeStyle.GPTJ,
)
