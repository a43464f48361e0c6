"""GGUFs that have all sizes of published models and no weights: their tensors are a hole in the file."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter


@dataclass(frozen=True)
class PublishedSizes:
    """A published model's sizes; all have tied embeddings. `fused` projections are those of Phi's files."""

    architecture: str
    layers: int
    d: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rotary_dim: int | None = None
    head_norms: bool = False
    fused: bool = False


MODELS = {
    "Llama-3.2-1B": PublishedSizes("llama", 16, 2048, 8192, 32, 8, 64, 128_256, 131_072),
    "Qwen3-0.6B": PublishedSizes("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, head_norms=True),
    "Qwen3-4B": PublishedSizes("qwen3", 36, 2560, 9728, 32, 8, 128, 151_936, 40_960, head_norms=True),
    "Phi-4-mini": PublishedSizes(
        "phi3", 32, 3072, 8192, 24, 8, 128, 200_064, 131_072, rotary_dim=96, fused=True
    ),
}


def write_sparse(path: Path, sizes: PublishedSizes) -> Path:
    """Write the file, which takes some kilobytes on the disk; every weight reads as zero."""
    writer = GGUFWriter(path, sizes.architecture)
    writer.add_block_count(sizes.layers)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.d)
    writer.add_feed_forward_length(sizes.ff)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_rope_dimension_count(sizes.rotary_dim or sizes.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    tensors = dict(_tensors(sizes))
    for name, shape in tensors.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float16), 2 * math.prod(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    data = sum(_padded(2 * math.prod(shape)) for shape in tensors.values())
    os.truncate(path, _padded(path.stat().st_size) + data)
    return path


def _tensors(sizes: PublishedSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, ff = sizes.d, sizes.ff
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    layer: dict[str, tuple[int, ...]] = {"attn_norm": (d,), "attn_output": (d, queries)}
    if sizes.fused:
        layer |= {"attn_qkv": (queries + 2 * keys, d), "ffn_norm": (d,), "ffn_up": (2 * ff, d)}
    else:
        layer |= {"attn_q": (queries, d), "attn_k": (keys, d), "attn_v": (keys, d)}
        layer |= {"ffn_norm": (d,), "ffn_gate": (ff, d), "ffn_up": (ff, d)}
    if sizes.head_norms:
        layer |= {"attn_q_norm": (sizes.head_dim,), "attn_k_norm": (sizes.head_dim,)}
    layer["ffn_down"] = (d, ff)
    yield "token_embd.weight", (sizes.vocabulary, d)
    for index in range(sizes.layers):
        yield from ((f"blk.{index}.{name}.weight", shape) for name, shape in layer.items())
    yield "output_norm.weight", (d,)


def _padded(size: int) -> int:
    return -(-size // 32) * 32
