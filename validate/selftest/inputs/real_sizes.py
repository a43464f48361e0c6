"""Define the sizes of published hybrids and mixtures, and write GGUFs of them with random weights.

Sizes are those of the models' configurations on the Hugging Face hub. Tensors and keys are those of
llama.cpp's converter. `layers` may be lowered to what fits the memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from anespec.validate.selftest.inputs.random_gguf import (
    Q8_BLOCK,
    add_vocabulary,
    begin,
    finish,
    random_tensor,
)
from anespec.validate.selftest.records import ModelSize

Shape = tuple[int, ...]
Tensors = Iterator[tuple[str, Shape]]
Keys = Mapping[str, int | float | bool | str | list[int]]

IN_FP32 = (
    "ssm_a",
    "ssm_d",
    "ssm_conv1d.weight",
    "ssm_norm.weight",
    "shortconv.conv.weight",
    "ffn_gate_inp.weight",
    "_exps.bias",
)
"""The names of tensors that converters keep in F32, beside those of one axis."""


EMBEDDINGS = ("token_embd.weight", "output.weight")

LAYER_OUTPUTS = ("attn_output.weight", "ssm_out.weight", "shortconv.out_proj.weight", "ffn_down.weight")
"""The names of matrices whose result is added to the hidden state."""

QUIET = 0.001
"""The factor of these matrices in a model whose text runs in circles."""


@dataclass(frozen=True)
class RealSizes:
    """A published model's sizes.

    `keys` are its metadata without the prefix of the architecture, and without the layers. `tensors_of`
    yields the tensors of a layer without the prefix `blk.N.`; `others` are those beside the embeddings.
    """

    architecture: str
    layers: int
    d: int
    vocabulary: int
    keys: Callable[[int], Keys]
    tensors_of: Callable[[int], Tensors]
    final_norm: str = "output_norm.weight"
    tied: bool = True

    def tensors(self, layers: int) -> Tensors:
        """Yield the name and the shape of every tensor of a model of so many layers."""
        yield "token_embd.weight", (self.vocabulary, self.d)
        for layer in range(layers):
            yield from ((f"blk.{layer}.{name}", shape) for name, shape in self.tensors_of(layer))
        yield self.final_norm, (self.d,)
        if not self.tied:
            yield "output.weight", (self.vocabulary, self.d)


def _attention(d: int, heads: int, kv_heads: int, head_dim: int, *, gate: bool = False) -> Tensors:
    yield "attn_q.weight", (heads * head_dim * (2 if gate else 1), d)
    yield "attn_k.weight", (kv_heads * head_dim, d)
    yield "attn_v.weight", (kv_heads * head_dim, d)
    yield "attn_output.weight", (d, heads * head_dim)


def _head_norms(queries: int, keys: int) -> Tensors:
    yield "attn_q_norm.weight", (queries,)
    yield "attn_k_norm.weight", (keys,)


def _mlp(d: int, width: int) -> Tensors:
    yield "ffn_gate.weight", (width, d)
    yield "ffn_up.weight", (width, d)
    yield "ffn_down.weight", (d, width)


def _experts(d: int, count: int, width: int) -> Tensors:
    yield "ffn_gate_inp.weight", (count, d)
    yield "ffn_gate_exps.weight", (count, width, d)
    yield "ffn_up_exps.weight", (count, width, d)
    yield "ffn_down_exps.weight", (count, d, width)


def qwen35(
    layers: int, d: int, ff: int, heads: int, kv_heads: int, value_heads: int, interval: int = 4
) -> RealSizes:
    """Return the sizes of a dense Qwen 3.5; one layer of `interval` has attention."""
    key_heads, size, head_dim = 16, 128, 256
    inner = value_heads * size
    channels = 2 * key_heads * size + inner

    def keys(_: int) -> Keys:
        return {
            "feed_forward_length": ff,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": 1e7,
            "ssm.conv_kernel": 4,
            "ssm.state_size": size,
            "ssm.group_count": key_heads,
            "ssm.time_step_rank": value_heads,
            "ssm.inner_size": inner,
            "full_attention_interval": interval,
        }

    def layer(index: int) -> Tensors:
        yield "attn_norm.weight", (d,)
        if (index + 1) % interval == 0:
            yield from _attention(d, heads, kv_heads, head_dim, gate=True)
            yield from _head_norms(head_dim, head_dim)
        else:
            yield "attn_qkv.weight", (channels, d)
            yield "attn_gate.weight", (inner, d)
            yield "ssm_conv1d.weight", (channels, 4)
            yield "ssm_a", (value_heads,)
            yield "ssm_dt.bias", (value_heads,)
            yield "ssm_alpha.weight", (value_heads, d)
            yield "ssm_beta.weight", (value_heads, d)
            yield "ssm_norm.weight", (size,)
            yield "ssm_out.weight", (d, inner)
        yield "post_attention_norm.weight", (d,)
        yield from _mlp(d, ff)

    return RealSizes("qwen35", layers, d, 248_320, keys, layer)


def lfm2(layers: int = 16, attention: Sequence[int] = (2, 5, 8, 10, 12, 14)) -> RealSizes:
    """Return the sizes of LFM2-1.2B; the layers in `attention` have no convolution."""
    d, ff, heads, kv_heads, head_dim = 2048, 8192, 32, 8, 64

    def keys(layers: int) -> Keys:
        return {
            "feed_forward_length": ff,
            "attention.head_count": heads,
            "attention.head_count_kv": [kv_heads if layer in attention else 0 for layer in range(layers)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
            "shortconv.l_cache": 3,
        }

    def layer(index: int) -> Tensors:
        yield "attn_norm.weight", (d,)
        if index in attention:
            yield from _attention(d, heads, kv_heads, head_dim)
            yield from _head_norms(head_dim, head_dim)
        else:
            yield "shortconv.in_proj.weight", (3 * d, d)
            yield "shortconv.conv.weight", (d, 3)
            yield "shortconv.out_proj.weight", (d, d)
        yield "ffn_norm.weight", (d,)
        yield from _mlp(d, ff)

    return RealSizes("lfm2", layers, d, 65_536, keys, layer, final_norm="token_embd_norm.weight")


GRANITE_SCALES: Keys = {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 6.0}


def granite_hybrid(layers: int = 40, attention: Sequence[int] = (5, 15, 25, 35)) -> RealSizes:
    """Return the sizes of Granite-4.0-H-1B; the layers in `attention` have no Mamba 2."""
    d, ff, heads, kv_heads, head_dim = 1536, 4096, 12, 4, 128
    ssm_heads, inner, state = 48, 3072, 128

    def keys(layers: int) -> Keys:
        return {
            "feed_forward_length": ff,
            "attention.head_count": heads,
            "attention.head_count_kv": [kv_heads if layer in attention else 0 for layer in range(layers)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.scale": 1 / head_dim,
            **GRANITE_SCALES,
            "rope.dimension_count": head_dim,
            "rope.freq_base": 10_000.0,
            "rope.scaling.finetuned": False,
            "ssm.conv_kernel": 4,
            "ssm.state_size": state,
            "ssm.group_count": 1,
            "ssm.inner_size": inner,
            "ssm.time_step_rank": ssm_heads,
        }

    def layer(index: int) -> Tensors:
        yield "attn_norm.weight", (d,)
        if index in attention:
            yield from _attention(d, heads, kv_heads, head_dim)
        else:
            yield "ssm_in.weight", (2 * inner + 2 * state + ssm_heads, d)
            yield "ssm_conv1d.weight", (inner + 2 * state, 4)
            yield "ssm_conv1d.bias", (inner + 2 * state,)
            yield "ssm_dt.bias", (ssm_heads,)
            yield "ssm_a", (ssm_heads, 1)
            yield "ssm_d", (ssm_heads, 1)
            yield "ssm_norm.weight", (1, inner)
            yield "ssm_out.weight", (d, inner)
        yield "ffn_norm.weight", (d,)
        yield from _mlp(d, ff)

    return RealSizes("granitehybrid", layers, d, 100_352, keys, layer)


def _mixture_layer(d: int, attention: Iterable[tuple[str, Shape]], experts: int, width: int) -> Tensors:
    yield "attn_norm.weight", (d,)
    yield from attention
    yield "ffn_norm.weight", (d,)
    yield from _experts(d, experts, width)


def olmoe() -> RealSizes:
    """Return the sizes of OLMoE-1B-7B."""
    d, heads, experts, width = 2048, 16, 64, 1024
    head_dim = d // heads

    def keys(_: int) -> Keys:
        return {
            "feed_forward_length": width,
            "attention.head_count": heads,
            "attention.head_count_kv": heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10_000.0,
            "expert_count": experts,
            "expert_used_count": 8,
        }

    def layer(_: int) -> Tensors:
        attention = *_attention(d, heads, heads, head_dim), *_head_norms(d, d)
        return _mixture_layer(d, attention, experts, width)

    return RealSizes("olmoe", 16, d, 50_304, keys, layer, tied=False)


def qwen3moe() -> RealSizes:
    """Return the sizes of Qwen3-30B-A3B."""
    d, heads, kv_heads, head_dim, experts, width = 2048, 32, 4, 128, 128, 768

    def keys(_: int) -> Keys:
        return {
            "feed_forward_length": 6144,
            "expert_feed_forward_length": width,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": experts,
            "expert_used_count": 8,
        }

    def layer(_: int) -> Tensors:
        attention = *_attention(d, heads, kv_heads, head_dim), *_head_norms(head_dim, head_dim)
        return _mixture_layer(d, attention, experts, width)

    return RealSizes("qwen3moe", 48, d, 151_936, keys, layer, tied=False)


def granite_moe(layers: int = 24) -> RealSizes:
    """Return the sizes of Granite-3.1-1B-A400M."""
    d, heads, kv_heads, head_dim, experts, width = 1024, 16, 8, 64, 32, 512

    def keys(_: int) -> Keys:
        return {
            "feed_forward_length": width,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.scale": 1 / head_dim,
            **GRANITE_SCALES,
            "rope.dimension_count": head_dim,
            "rope.freq_base": 10_000.0,
            "expert_count": experts,
            "expert_used_count": 8,
        }

    def layer(_: int) -> Tensors:
        return _mixture_layer(d, _attention(d, heads, kv_heads, head_dim), experts, width)

    return RealSizes("granitemoe", layers, d, 49_155, keys, layer)


def gpt_oss() -> RealSizes:
    """Return the sizes of gpt-oss-20b."""
    d, heads, kv_heads, head_dim, experts = 2880, 64, 8, 64, 32

    def keys(_: int) -> Keys:
        return {
            "feed_forward_length": d,
            "expert_feed_forward_length": d,
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.sliding_window": 128,
            "rope.freq_base": 150_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
            "expert_count": experts,
            "expert_used_count": 4,
        }

    def layer(_: int) -> Tensors:
        yield "attn_norm.weight", (d,)
        yield from _attention(d, heads, kv_heads, head_dim)
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield f"attn_{name}.bias", (rows * head_dim,)
        yield "attn_output.bias", (d,)
        yield "attn_sinks.weight", (heads,)
        yield "post_attention_norm.weight", (d,)
        yield from _experts(d, experts, d)
        yield "ffn_gate_inp.bias", (experts,)
        for name in ("gate", "up", "down"):
            yield f"ffn_{name}_exps.bias", (experts, d)

    return RealSizes("gpt-oss", 24, d, 201_088, keys, layer, tied=False)


REAL_SIZES: Mapping[str, RealSizes] = {
    "Qwen3.5-0.8B": qwen35(24, 1024, 3584, 8, 2, 16),
    "Qwen3.5-4B": qwen35(32, 2560, 9216, 16, 4, 32),
    "LFM2-1.2B": lfm2(),
    "Granite-4.0-H-1B": granite_hybrid(),
    "Granite-3.1-1B-A400M": granite_moe(),
    "OLMoE-1B-7B": olmoe(),
    "Qwen3-30B-A3B": qwen3moe(),
    "gpt-oss-20b": gpt_oss(),
}


ONE_OF_EACH: Mapping[ModelSize, RealSizes] = {
    "delta": qwen35(2, 1024, 3584, 8, 2, 16, interval=2),
    "mamba2": granite_hybrid(2, attention=(1,)),
    "convolution": lfm2(2, attention=(1,)),
    "mixture": granite_moe(2),
}
"""Two layers of real sizes for each mixer: one with it, one with attention, as models have both. The two of
the mixture have experts, which for a Neural Engine are one wide MLP."""

FEW_TOKENS = 512
"""The vocabulary of these models; small, since only layers are measured."""


def real_bytes(sizes: RealSizes, vocabulary: int = FEW_TOKENS) -> int:
    """Return about the bytes of a model's weights in a Q8_0 file with a vocabulary of that size."""
    shapes = (shape for name, shape in sizes.tensors(sizes.layers) if name not in EMBEDDINGS)
    return (sum(map(math.prod, shapes)) + 2 * vocabulary * sizes.d) * 34 // 32


def write_real(
    path: Path,
    sizes: RealSizes,
    *,
    layers: int | None = None,
    vocabulary: int | None = None,
    circle: int | None = None,
    seed: int = 1,
) -> None:
    """Write a model in Q8_0, with one tensor in memory at a time.

    `layers` and `vocabulary` shorten it; by default it is whole. With `circle` its layers add almost nothing
    and its head is the embedding by another order of tokens: greedy text repeats every `circle` tokens.
    """
    count = sizes.layers if layers is None else layers
    sizes = sizes if circle is None else replace(sizes, tied=False)
    kind = GGMLQuantizationType.Q8_0
    writer = begin(path, sizes.architecture, kind)
    writer.add_block_count(count)
    writer.add_context_length(4096)
    writer.add_embedding_length(sizes.d)
    for key, value in sizes.keys(count).items():
        _add(writer, f"{sizes.architecture}.{key}", value)
    tokens = sizes.vocabulary if vocabulary is None else vocabulary
    add_vocabulary(writer, tokens)
    shapes = {
        name: (tokens, *shape[1:]) if name in EMBEDDINGS else shape for name, shape in sizes.tensors(count)
    }
    kinds = {
        name: GGMLQuantizationType.F32 if len(shape) == 1 or name.endswith(IN_FP32) else kind
        for name, shape in shapes.items()
    }
    rng = np.random.default_rng(seed)

    def tensor(name: str) -> NDArray[np.generic]:
        if circle is None:
            return _values(name, shapes[name], kinds[name], rng)
        if name in EMBEDDINGS:
            embedding = random_tensor(shapes[name], kind, np.random.default_rng(seed))
            return embedding if name == EMBEDDINGS[0] else in_circles(embedding, circle)
        values = _values(name, shapes[name], kinds[name], rng)
        if name.endswith(LAYER_OUTPUTS):
            values.view(Q8_BLOCK)["scale"] *= QUIET
        return values

    finish(writer, shapes, kinds, tensor)


def in_circles(rows: NDArray[np.generic], length: int) -> NDArray[np.generic]:
    """Return `rows` with each one place further in its group of `length`, the last of them in front."""
    number = np.arange(len(rows))
    first = number - number % length
    size = np.minimum(length, len(rows) - first)
    return np.asarray(rows[first + (number - first - 1) % size])


def _values(
    name: str, shape: Shape, kind: GGMLQuantizationType, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Return a tensor as stored. States decay at the rates of trained models: g of -0.001 to -0.1 a token."""
    values: NDArray[np.float64] | None = None
    if name.endswith("ssm_a"):
        values = -np.exp(rng.uniform(0, 2, shape))
    elif name.endswith("ssm_dt.bias"):
        values = rng.uniform(-6, -3, shape)
    elif name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight", "ffn_gate_inp.weight")):
        values = rng.standard_normal(shape) * shape[-1] ** -0.5
    elif name.endswith(".bias"):
        values = 0.1 * rng.standard_normal(shape)
    elif name.endswith(("ssm_d", "ssm_norm.weight")):
        values = 1 + 0.05 * rng.standard_normal(shape)
    if values is not None:
        return np.asarray(values, np.float32)
    return random_tensor(shape, kind, rng)


def _add(writer: GGUFWriter, key: str, value: int | float | bool | str | list[int]) -> None:
    match value:
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case _:
            writer.add_array(key, value)
