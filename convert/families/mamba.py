"""Families with Mamba 2: `mamba2`, `granitehybrid`, `nemotron_h`, `nemotron_h_moe` and `falcon-h1`.

A layer's Mamba 2 is the same in all of them; they differ in which layers have one.
"""

from dataclasses import replace

from anespec.convert.families.family import Activation, Family, Recurrent, RopeStyle
from anespec.convert.families.granite import GRANITEMOE
from anespec.convert.families.mixture import Gating, Mixture

MAMBA2 = Family(
    architecture="mamba2",
    title="Mamba 2, Codestral Mamba",
    rope_style=RopeStyle.NEOX,
    recurrent=Recurrent.EVERY_LAYER,
)

GRANITE_HYBRID = replace(
    GRANITEMOE,
    architecture="granitehybrid",
    title="Granite 4 (hybrid, dense or with experts)",
    recurrent=Recurrent.WITHOUT_KV,
)

NEMOTRON_H = Family(
    architecture="nemotron_h",
    title="Nemotron-H, Nemotron Nano 2 (dense)",
    rope_style=RopeStyle.NEOX,
    recurrent=Recurrent.ANY_PART,
    gated=False,
    activation=Activation.RELU_SQUARED,
    rope_free_step=1,
)

NEMOTRON_H_MOE = replace(
    NEMOTRON_H,
    architecture="nemotron_h_moe",
    title="Nemotron 3 Nano and Super",
    mixture=Mixture(
        gating=Gating.SIGMOID,
        renormalised=False,
        reads_weights=True,
        selection_bias=True,
        shared=True,
        latent=True,
    ),
)

FALCON_H1 = Family(
    architecture="falcon-h1",
    title="Falcon-H1",
    rope_style=RopeStyle.NEOX,
    recurrent=Recurrent.BESIDE_ATTENTION,
    bare_mamba=True,
)
