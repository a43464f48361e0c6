"""`phi3`: Phi-3 and Phi-4-mini: fused q/k/v and gate/up, rope on a part of each head, LongRoPE.

A sliding window in the file is ignored, as in llama.cpp: models without one have the key, too.
"""

from anespec.convert.families.family import Family, RopeStyle

PHI3 = Family(
    architecture="phi3",
    title="Phi-3, Phi-4-mini",
    rope_style=RopeStyle.NEOX,
)
