"""`granite` and its kin, `minicpm`: a Llama with scales on embeddings, residual additions and logits."""

from dataclasses import replace

from anespec.convert.families.family import (
    EmbeddingScale,
    Family,
    LogitScale,
    RopeStyle,
    SlidingPattern,
    SlidingRope,
)
from anespec.convert.families.mixture import Mixture

GRANITE = Family(
    architecture="granite",
    title="Granite 3 and 4 (dense)",
    rope_style=RopeStyle.GPTJ,
    embedding_scale=EmbeddingScale.KEY,
    reads_scales=True,
    logit_scale=LogitScale.DIVISOR,
    rope_switch=True,
)

GRANITEMOE = replace(
    GRANITE,
    architecture="granitemoe",
    title="Granite 3 with experts",
    mixture=Mixture(width_key="feed_forward_length", shared=True),
)

GRANITE_SWA = replace(
    GRANITEMOE,
    architecture="granite_swa",
    title="Granite with sliding windows",
    rope_switch=False,
    rope_pattern=True,
    sinks=True,
    sliding=SlidingPattern(period=None, rope=SlidingRope.SAME),
)

MINICPM = Family(
    architecture="minicpm",
    title="MiniCPM 1, 2 and 4",
    rope_style=RopeStyle.GPTJ,
    embedding_scale=EmbeddingScale.KEY,
    minicpm_scales=True,
    logit_scale=LogitScale.DIVISOR,
)
