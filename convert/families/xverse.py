"""`xverse`: a Llama in all but name."""

from anespec.convert.families.family import Family, RopeStyle

XVERSE = Family(
    architecture="xverse",
    title="XVERSE",
    rope_style=RopeStyle.GPTJ,
)
