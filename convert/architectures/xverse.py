"""`xverse`: a Llama in all but name."""

from anespec.convert.architectures.family import Family, RopeStyle

XVERSE = Family(
    architecture="xverse",
    title="XVERSE",
    rope_style=RopeStyle.GPTJ,
)
