"""`llama`: Llama 1 to 3, and in GGUF also Mistral, SmolLM, Bielik and others."""

from anespec.convert.families.family import Family, RopeStyle

LLAMA = Family(
    architecture="llama",
    title="Llama (also Mistral, SmolLM, Bielik, DeepSeek-LLM …)",
    rope_style=RopeStyle.GPTJ,
)
