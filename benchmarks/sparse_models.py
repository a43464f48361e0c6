"""Write GGUFs with the sizes of published models and no weights: their tensors are a hole in the file."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from anespec.validate.selftest.inputs.random_gguf import Sizes, add_sizes


@dataclass(frozen=True)
class PublishedSizes(Sizes):
    """A published model's sizes. `fused` projections are as in Phi's files."""

    architecture: str = "llama"
    rotary_dim: int | None = None
    head_norms: bool = False
    fused: bool = False


MODELS = {
    "Llama-3.2-1B": PublishedSizes(16, 2048, 8192, 32, 8, 128_256, 64, 131_072, "llama"),
    "Qwen3-0.6B": PublishedSizes(28, 1024, 3072, 16, 8, 151_936, 128, 40_960, "qwen3", head_norms=True),
    "Qwen3-4B": PublishedSizes(36, 2560, 9728, 32, 8, 151_936, 128, 40_960, "qwen3", head_norms=True),
    "Phi-4-mini": PublishedSizes(
        32, 3072, 8192, 24, 8, 200_064, 128, 131_072, "phi3", rotary_dim=96, fused=True
    ),
}


def write_sparse(path: Path, sizes: PublishedSizes) -> Path:
    """Write the file, which takes some kilobytes on disk; every weight reads as zero."""
    writer = GGUFWriter(path, sizes.architecture)
    add_sizes(writer, sizes)
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
