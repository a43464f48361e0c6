"""`xverse`: a Llama in all but name."""

from anespec.convert.architectures.family import Family, RopeLayout

XVERSE = Family(
    architecture="xverse",
    title="XVERSE",
    rope_layout=RopeLayout.INTERLEAVED,
)
