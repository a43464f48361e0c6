"""`internlm2`: a Llama in all but name."""

from anespec.convert.architectures.family import Family, RopeLayout

INTERNLM2 = Family(
    architecture="internlm2",
    title="InternLM 2 and 2.5",
    rope_layout=RopeLayout.INTERLEAVED,
)
