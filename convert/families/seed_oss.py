"""`seed_oss`: biases on q, k and v; the norm before the MLP has another name."""

from anespec.convert.families.family import Family, Norms, RopeStyle

SEED_OSS = Family(
    architecture="seed_oss",
    title="Seed-OSS",
    rope_style=RopeStyle.NEOX,
    norms=Norms(mlp="post_attention_norm"),
)
