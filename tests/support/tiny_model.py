"""A random Llama small enough to write, damage and convert within a test."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class TinyModel:
    """Sizes of the model; `seed` draws its weights."""

    d: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    ff: int = 64
    layers: int = 2
    vocabulary: int = 40
    context: int = 64
    seed: int = 0

    def tensors(self) -> Tensors:
        """Every tensor of a Llama with a head of its own, by GGUF name."""
        rng = np.random.default_rng(self.seed)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {"token_embd": (self.vocabulary, self.d), "output": (self.vocabulary, self.d)}
        for i in range(self.layers):
            shapes |= {
                f"blk.{i}.attn_q": (q, self.d),
                f"blk.{i}.attn_k": (kv, self.d),
                f"blk.{i}.attn_v": (kv, self.d),
                f"blk.{i}.attn_output": (self.d, q),
                f"blk.{i}.ffn_gate": (self.ff, self.d),
                f"blk.{i}.ffn_up": (self.ff, self.d),
                f"blk.{i}.ffn_down": (self.d, self.ff),
            }
        tensors = {
            f"{name}.weight": rng.normal(scale=shape[1] ** -0.5, size=shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        norms = [f"blk.{i}.{role}_norm" for i in range(self.layers) for role in ("attn", "ffn")]
        for name in (*norms, "output_norm"):
            tensors[f"{name}.weight"] = rng.uniform(0.5, 1.5, self.d).astype(np.float32)
        return tensors

    def metadata(self) -> dict[str, Any]:
        """The keys that a Llama needs."""
        return {
            "llama.embedding_length": self.d,
            "llama.block_count": self.layers,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.feed_forward_length": self.ff,
            "llama.context_length": self.context,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(self.vocabulary)],
            "tokenizer.ggml.scores": [-float(i) for i in range(self.vocabulary)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.add_bos_token": True,
        }


def add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    """Add a key with the type that GGUF gives to such values."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


def write_gguf(
    path: Path,
    model: TinyModel = TinyModel(),
    *,
    architecture: str = "llama",
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, NDArray[np.float32] | None] = {},
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Write `model` with some keys and tensors replaced, added, or left out where they are None."""
    writer = GGUFWriter(path, architecture)
    for key, value in (model.metadata() | dict(metadata)).items():
        if value is not None:
            add_value(writer, key, value)
    for name, values in (model.tensors() | dict(tensors)).items():
        if values is None:
            continue
        if values.ndim == 1 or kind is GGMLQuantizationType.F32:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
