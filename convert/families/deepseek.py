"""`deepseek2`: latent attention, and a mixture of experts after dense layers."""

from anespec.convert.families.family import Family, RopeStyle
from anespec.convert.families.mixture import Mixture

DEEPSEEK2 = Family(
    architecture="deepseek2",
    title="DeepSeek-V2-Lite, Moonlight, GLM-4.7-Flash",
    rope_style=RopeStyle.GPTJ,
    latent_attention=True,
    mixture=Mixture(
        renormalised=False,
        reads_gating=True,
        bias_means_sigmoid=True,
        dense_layers=True,
        selection_bias=True,
        shared=True,
    ),
)
