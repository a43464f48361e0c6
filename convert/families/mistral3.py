"""`mistral3`: Ministral 3, with YaRN, and attention scores that grow with the position."""

from anespec.convert.families.family import Family, RopeStyle

MISTRAL3 = Family(
    architecture="mistral3",
    title="Ministral 3, Mistral Small 3.2",
    rope_style=RopeStyle.GPTJ,
    score_temperature=True,
    tunes_yarn=True,
)
