"""`smollm3`: a Llama in which every fourth layer has no rope."""

from anespec.convert.architectures.family import Family, RopeLayout

SMOLLM3 = Family(
    architecture="smollm3",
    title="SmolLM 3",
    rope_layout=RopeLayout.INTERLEAVED,
    rope_free_step=4,
)
