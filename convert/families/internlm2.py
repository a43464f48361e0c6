"""`internlm2`: a Llama in all but name."""

from anespec.convert.families.family import Family, RopeStyle

INTERNLM2 = Family(
    architecture="internlm2",
    title="InternLM 2 and 2.5",
    rope_style=RopeStyle.GPTJ,
)
