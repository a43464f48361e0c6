"""`chatglm` and `glm4`: fused projections, and rope on half of each head."""

from anespec.convert.families.family import Family, Norms, RopeStyle

GLM4 = Family(
    architecture="glm4",
    title="GLM-4-0414",
    rope_style=RopeStyle.GPTJ,
    sections_mean_neox=True,
    norms=Norms(after_attention="post_attention_norm", after_mlp="post_ffw_norm"),
)


CHATGLM = Family(
    architecture="chatglm",
    title="ChatGLM 3, GLM-4-9B",
    rope_style=RopeStyle.GPTJ,
)
