"""`smollm3`: a Llama in which every fourth layer has no rope."""

from anespec.convert.families.family import Family, RopeStyle

SMOLLM3 = Family(
    architecture="smollm3",
    title="SmolLM 3",
    rope_style=RopeStyle.GPTJ,
    rope_free_step=4,
)
