"""`ernie4_5`: the dense ERNIE 4.5, a Llama in all but name."""

from anespec.convert.families.family import Family, RopeStyle

ERNIE4_5 = Family(
    architecture="ernie4_5",
    title="ERNIE 4.5 (dense)",
    rope_style=RopeStyle.GPTJ,
)
