"""`granite`: a Llama with scales on embeddings, scores, residual additions and logits."""

from anespec.convert.families.family import EmbeddingScale, Family, RopeStyle

GRANITE = Family(
    architecture="granite",
    title="Granite 3 and 4 (dense)",
    rope_style=RopeStyle.GPTJ,
    embedding_scale=EmbeddingScale.KEY,
    reads_scales=True,
    rope_switch=True,
)
