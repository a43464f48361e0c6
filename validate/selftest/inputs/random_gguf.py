"""Write GGUFs of realistic Llama shapes with random weights, to measure without a download.

Such a model generates noise, but in the time and memory of a real one. Tensors are made and written one at a
time, Q8_0 blocks directly from random bytes.
"""

import itertools
import math
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from numpy.typing import NDArray

WEIGHT_STD = 0.02
"""The standard deviation of weights in large models; small ones have larger weights, so that their layers
add as much to their input."""

INT8_STD = 127 / 3**0.5
Q8_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", (32,))])


@dataclass(frozen=True)
class Sizes:
    """The shapes of a Llama model with tied embeddings."""

    layers: int
    d: int
    ff: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 128
    context: int = 4096


def shapes(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor's name and shape, rows first."""
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    yield "token_embd.weight", (sizes.vocabulary, sizes.d)
    for layer in range(sizes.layers):
        layer_shapes = {
            "attn_norm": (sizes.d,),
            "attn_q": (queries, sizes.d),
            "attn_k": (keys, sizes.d),
            "attn_v": (keys, sizes.d),
            "attn_output": (sizes.d, queries),
            "ffn_norm": (sizes.d,),
            "ffn_gate": (sizes.ff, sizes.d),
            "ffn_up": (sizes.ff, sizes.d),
            "ffn_down": (sizes.d, sizes.ff),
        }
        yield from ((f"blk.{layer}.{name}.weight", shape) for name, shape in layer_shapes.items())
    yield "output_norm.weight", (sizes.d,)


def stored_bytes(sizes: Sizes) -> int:
    """Return about the bytes of a model's weights in a Q8_0 file: 34 bytes for 32 weights."""
    return sum(math.prod(shape) for _, shape in shapes(sizes)) * 34 // 32


def random_tensor(
    shape: tuple[int, ...], kind: GGMLQuantizationType, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Return weights as stored (Q8_0: bytes per row), with a standard deviation of 0.02 or more.

    Norms are near one.
    """
    if len(shape) == 1:
        return (1 + 0.05 * rng.standard_normal(shape)).astype(np.float32)
    spread = max(WEIGHT_STD, shape[-1] ** -0.5)
    if kind is GGMLQuantizationType.F16:
        return np.asarray(spread * rng.standard_normal(shape, dtype=np.float32), dtype=np.float16)
    blocks = np.empty((*shape[:-1], shape[-1] // 32), dtype=Q8_BLOCK)
    noise = np.frombuffer(rng.bytes(blocks.size * 32), dtype=np.int8)
    blocks["values"] = np.maximum(noise, -127).reshape(*blocks.shape, 32)
    blocks["scale"] = spread / INT8_STD * rng.uniform(0.8, 1.2, blocks.shape)
    raw: NDArray[np.uint8] = blocks.view(np.uint8)
    return raw


def pieces(count: int) -> Iterator[tuple[str, TokenType]]:
    """Yield `count` distinct SentencePiece-like tokens: controls, all bytes, then words by length."""
    words = (
        start + "".join(letters)
        for length in itertools.count(1)
        for letters in itertools.product(string.ascii_lowercase, repeat=length)
        for start in ("", "▁")
    )
    every = itertools.chain(
        [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)],
        ((f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)),
        [("▁", TokenType.NORMAL)],
        ((word, TokenType.NORMAL) for word in words),
    )
    return itertools.islice(every, count)


def add_sizes(writer: GGUFWriter, sizes: Sizes) -> None:
    """Write a model's sizes as metadata, except those of its vocabulary and its rotation."""
    writer.add_block_count(sizes.layers)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.d)
    writer.add_feed_forward_length(sizes.ff)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)


def write(path: Path, sizes: Sizes, kind: GGMLQuantizationType, seed: int = 1) -> None:
    """Write the file with one tensor in memory at a time."""
    writer = begin(path, "llama", kind)
    add_sizes(writer, sizes)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer, sizes.vocabulary)
    rng = np.random.default_rng(seed)
    stored = dict(shapes(sizes))
    kinds = {name: GGMLQuantizationType.F32 if len(shape) == 1 else kind for name, shape in stored.items()}
    finish(writer, stored, kinds, lambda name: random_tensor(stored[name], kinds[name], rng))


def begin(path: Path, architecture: str, kind: GGMLQuantizationType) -> GGUFWriter:
    """Return the writer of a random model, with its name and file type."""
    writer = GGUFWriter(path, architecture)
    writer.add_name("random")
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_F16 if kind is GGMLQuantizationType.F16 else gguf.LlamaFileType.MOSTLY_Q8_0
    )
    return writer


def add_vocabulary(writer: GGUFWriter, count: int) -> None:
    """Write a SentencePiece vocabulary of `count` tokens as metadata."""
    writer.add_vocab_size(count)
    tokens, types = zip(*pieces(count), strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(count)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def finish(
    writer: GGUFWriter,
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, GGMLQuantizationType],
    tensor: Callable[[str], NDArray[np.generic]],
) -> None:
    """Write the tensors of these shapes and kinds in order, and close the file.

    `tensor` returns a tensor's values as they are stored.
    """
    for name, shape in shapes.items():
        stored = kinds[name]
        block, block_bytes = gguf.GGML_QUANT_SIZES[stored]
        row_bytes = shape[-1] // block * block_bytes
        if stored is GGMLQuantizationType.Q8_0:
            rows = shape[:-1]
            writer.add_tensor_info(
                name, (*rows, row_bytes), np.dtype(np.uint8), math.prod(rows) * row_bytes, stored
            )
        else:
            dtype = np.dtype(np.float32 if stored is GGMLQuantizationType.F32 else np.float16)
            writer.add_tensor_info(name, shape, dtype, math.prod(shape) * dtype.itemsize, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in shapes:
        writer.write_tensor_data(tensor(name))
    writer.close()
