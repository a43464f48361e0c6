"""Keys and tensors of variants of model files, as `Variant` takes them."""

from typing import Any


def each(layers: int, *roles: str) -> dict[str, bool]:
    """Tensors of these roles in every layer."""
    return {f"blk.{layer}.{role}": True for layer in range(layers) for role in roles}


def yarn(factor: float = 4.0, original: int = 64) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }


def sizes(d: int, heads: int, kv_heads: int, head_dim: int, ff: int, layers: int) -> dict[str, Any]:
    return {
        "embedding_length": d,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "feed_forward_length": ff,
        "block_count": layers,
    }


def slides(pattern: str) -> dict[str, Any]:
    """Gemma 4's layers in a row: `s` slides, `f` sees everything."""
    return {
        "block_count": len(pattern),
        "attention.sliding_window_pattern": [layer == "s" for layer in pattern],
        "attention.head_count_kv": 2,
    }


def experts(count: int, used: int, width: int | None) -> dict[str, Any]:
    """A mixture; without a width the experts have that of other MLPs."""
    found = {"expert_count": count, "expert_used_count": used}
    return found if width is None else found | {"expert_feed_forward_length": width}


def latent(heads: int, plain: int, rotary: int, value: int, latent: int, rank: int | None) -> dict[str, Any]:
    """Latent attention; without a rank queries are made of the hidden state."""
    return {
        "attention.head_count": heads,
        "attention.kv_lora_rank": latent,
        "attention.q_lora_rank": rank,
        "attention.key_length": latent + rotary,
        "attention.value_length": latent,
        "attention.key_length_mla": plain + rotary,
        "attention.value_length_mla": value,
        "rope.dimension_count": rotary,
    }


def plain_queries(layers: int) -> dict[str, Any]:
    """The tensors of a DeepSeek without a latent of queries."""
    return {"blk.*.attn_q_*": None, **each(layers, "attn_q.weight")}


def exaone4(layers: int) -> dict[str, Any]:
    """EXAONE 4's norms, in a file that starts from Qwen 3's."""
    return {
        "blk.*.attn_norm.weight": None,
        "blk.*.ffn_norm.weight": None,
        **each(layers, "post_attention_norm.weight", "post_ffw_norm.weight"),
    }


SMALL = sizes(48, 3, 1, 24, 100, 5)
"""One KV head under three, heads that do not add up to d, an MLP that is no multiple of 32."""
EVEN = sizes(48, 3, 1, 16, 72, 3)
"""The same with heads that add up to d."""
WINDOW = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
SWA_BASE = "rope.freq_base_swa"
FACTOR = "rope.scaling.attn_factor"
ORIGINAL = "rope.scaling.original_context_length"
LONG_AND_SHORT = {"rope_factors_long.weight": True, "rope_factors_short.weight": True}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
