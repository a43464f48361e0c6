"""`llama`: Llama 1 to 3, and in GGUF also Mistral, SmolLM, Bielik and others."""

from anespec.convert.families.family import Family, RopeStyle

# `ernie4_5`: the dense ERNIE 4.5, a Llama under another name.

ERNIE4_5 = Family(
    architecture="ernie4_5",
    title="ERNIE 4.5 (dense)",
    rope_style=RopeStyle.GPTJ,
)


# `xverse`: a Llama under another name.

XVERSE = Family(
    architecture="xverse",
    title="XVERSE",
    rope_style=RopeStyle.GPTJ,
)


# `internlm2`: a Llama under another name.

INTERNLM2 = Family(
    architecture="internlm2",
    title="InternLM 2 and 2.5",
    rope_style=RopeStyle.GPTJ,
)


LLAMA = Family(
    architecture="llama",
    title="Llama (also Mistral, SmolLM, Bielik, DeepSeek-LLM …)",
    rope_style=RopeStyle.GPTJ,
)
