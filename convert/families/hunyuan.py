"""`hunyuan-dense`: norms on q and k after rope."""

from anespec.convert.families.family import Family, HeadNorm, RopeStyle

HUNYUAN_DENSE = Family(
    architecture="hunyuan-dense",
    title="Hunyuan (dense), Hy-MT",
    rope_style=RopeStyle.NEOX,
    head_norm=HeadNorm.AFTER_ROPE,
)
