"""An independent fp32 implementation of architecture `llama`, read straight from the GGUF.

It shares nothing with `convert`: no graph, no permutation, no rope table. It computes one row at a
time, so that no mistake about blocks can hide in both. What llama.cpp computes is what a GGUF means;
the formulas below follow its `llama` graph and `ggml_rope` in its NORM form (interleaved pairs).
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anespec.manifests.errors import GGUFError, UnsupportedModelError
from anespec.manifests.gguf_file import GGUFFile

ARCHITECTURE = "llama"
HEAD_ROWS_AT_ONCE = 16384


@dataclass(frozen=True)
class ReferenceSizes:
    """The numbers of the GGUF that the formulas need."""

    d: int
    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    vocabulary: int
    epsilon: float
    attention_scale: float


class LayerCache:
    """Keys (after rope) and values of one layer for the rows so far: [n_kv, rows, head_dim]."""

    def __init__(self, sizes: ReferenceSizes) -> None:
        self.keys = torch.zeros(sizes.kv_heads, 0, sizes.key_dim)
        self.values = torch.zeros(sizes.kv_heads, 0, sizes.value_dim)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Add one row: `key` and `value` are [n_kv, head_dim]."""
        self.keys = torch.cat((self.keys, key[:, None]), dim=1)
        self.values = torch.cat((self.values, value[:, None]), dim=1)


@dataclass(frozen=True)
class _Projection:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.weight @ x
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    query: _Projection
    key: _Projection
    value: _Projection
    output: _Projection
    ff_norm: Tensor
    gate: _Projection
    up: _Projection
    down: _Projection


class Matrices(Protocol):
    """Where the reference takes its projections from: the GGUF, or what a conversion made of them."""

    def rows(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        """Rows of a tensor in the GGUF's order, float32 (rows, in)."""
        ...


class Reference:
    """The model in a GGUF, in float32, a row at a time.

    Weights are dequantised when first used; `resident_layers` of them at most are held at once.
    """

    def __init__(self, file: GGUFFile, resident_layers: int = 1, matrices: Matrices | None = None) -> None:
        """Read the hyperparameters of `file`, which must stay open while the reference is used.

        Projections come from `matrices`, by default from the file too; all else comes from the file.

        Raises:
            GGUFError: a hyperparameter is missing or unfit.
            UnsupportedModelError: the architecture or its rope scaling is not implemented here.
        """
        architecture = file.text("general.architecture")
        if architecture != ARCHITECTURE:
            raise UnsupportedModelError(
                f"{file.path}: there is no reference for the architecture {architecture!r}; "
                f"only {ARCHITECTURE!r} can be validated"
            )
        if file.integer("llama.expert_count", 0):
            raise UnsupportedModelError(
                f"{file.path}: it is a mixture of experts, for which there is no reference; "
                "only dense models can be validated"
            )
        self._file = file
        self._matrices: Matrices = file if matrices is None else matrices
        self._resident_layers = max(1, resident_layers)
        self._loaded: OrderedDict[int, _Layer] = OrderedDict()
        self.sizes = _read_sizes(file)
        self._frequencies, self._magnitude = _read_rope(file, self.sizes.key_dim)

    def caches(self) -> list[LayerCache]:
        """Empty caches for one sequence, one per layer of the model."""
        return [LayerCache(self.sizes) for _ in range(self.sizes.layers)]

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Rows of the embedding table: float32 [len(ids), d]; raises GGUFError where one is not finite."""
        rows = self._file.rows("token_embd.weight", np.asarray(ids, dtype=np.int64))
        if not np.isfinite(rows).all():
            raise GGUFError(f"{self._file.path}: tensor 'token_embd.weight' holds values that are not finite")
        return torch.from_numpy(rows)

    def layers(
        self, first: int, end: int, hidden: Tensor, positions: Sequence[int], caches: Sequence[LayerCache]
    ) -> Tensor:
        """Run layers first..end-1 over rows of `hidden`, float32 [rows, d], one after the other.

        Row i stands at `positions[i]` and attends to everything in the caches, which it extends.
        `caches` is indexed by layer. Returns float32 [rows, d].

        A layer is finished for all rows before the next is loaded; since a row only ever looks back,
        that equals whole single-row passes in order.
        """
        for index in range(first, end):
            layer = self._layer(index)
            cache = caches[index]
            hidden = torch.stack(
                [
                    self._layer_row(layer, row, position, cache)
                    for row, position in zip(hidden, positions, strict=True)
                ]
            )
        return hidden

    def logits(self, hidden: Tensor, first_token: int = 0, end_token: int | None = None) -> Tensor:
        """Final norm and rows first_token..end_token-1 of the output projection.

        `hidden` is float32 [rows, d]; returns float32 [rows, end_token - first_token].
        """
        end_token = self.sizes.vocabulary if end_token is None else end_token
        name = "output.weight" if "output.weight" in self._file.tensors else "token_embd.weight"
        norm = self._vector("output_norm.weight")
        bias = self._vector("output.bias") if "output.bias" in self._file.tensors else None
        normed = [self._norm(row, norm) for row in hidden]
        pieces = []
        for start in range(first_token, end_token, HEAD_ROWS_AT_ONCE):
            stop = min(start + HEAD_ROWS_AT_ONCE, end_token)
            weight = torch.tensor(self._matrices.rows(name, slice(start, stop)))
            piece = torch.stack([weight @ row for row in normed])
            pieces.append(piece if bias is None else piece + bias[start:stop])
        return torch.cat(pieces, dim=1)

    def _layer_row(self, layer: _Layer, x: Tensor, position: int, cache: LayerCache) -> Tensor:
        sizes = self.sizes
        normed = self._norm(x, layer.attention_norm)
        query = self._rotate(layer.query(normed).view(sizes.heads, sizes.key_dim), position)
        key = self._rotate(layer.key(normed).view(sizes.kv_heads, sizes.key_dim), position)
        cache.append(key, layer.value(normed).view(sizes.kv_heads, sizes.value_dim))
        group = sizes.heads // sizes.kv_heads
        grouped = query.view(sizes.kv_heads, group, sizes.key_dim)
        weights = torch.softmax(grouped @ cache.keys.transpose(1, 2) * sizes.attention_scale, dim=-1)
        x = x + layer.output((weights @ cache.values).reshape(-1))
        normed = self._norm(x, layer.ff_norm)
        return x + layer.down(torch.nn.functional.silu(layer.gate(normed)) * layer.up(normed))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean() + self.sizes.epsilon) * weight

    def _rotate(self, heads: Tensor, position: int) -> Tensor:
        """Turn each pair (2i, 2i+1) of the rotary part by position * frequency i; [heads, head_dim]."""
        angles = position * self._frequencies
        cos = (torch.cos(angles) * self._magnitude).float()
        sin = (torch.sin(angles) * self._magnitude).float()
        rotary = 2 * len(self._frequencies)
        even, odd = heads[:, 0:rotary:2], heads[:, 1:rotary:2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(1)
        return torch.cat((turned, heads[:, rotary:]), dim=1)

    def _layer(self, index: int) -> _Layer:
        if index in self._loaded:
            self._loaded.move_to_end(index)
            return self._loaded[index]
        while len(self._loaded) >= self._resident_layers:
            self._loaded.popitem(last=False)
        block = f"blk.{index}"
        layer = _Layer(
            attention_norm=self._vector(f"{block}.attn_norm.weight"),
            query=self._projection(f"{block}.attn_q"),
            key=self._projection(f"{block}.attn_k"),
            value=self._projection(f"{block}.attn_v"),
            output=self._projection(f"{block}.attn_output"),
            ff_norm=self._vector(f"{block}.ffn_norm.weight"),
            gate=self._projection(f"{block}.ffn_gate"),
            up=self._projection(f"{block}.ffn_up"),
            down=self._projection(f"{block}.ffn_down"),
        )
        self._loaded[index] = layer
        return layer

    def _projection(self, name: str) -> _Projection:
        weight = torch.tensor(self._matrices.rows(f"{name}.weight"))
        bias = self._vector(f"{name}.bias") if f"{name}.bias" in self._file.tensors else None
        return _Projection(weight, bias)

    def _vector(self, name: str) -> Tensor:
        return torch.tensor(self._file.rows(name)).flatten()


def _read_sizes(file: GGUFFile) -> ReferenceSizes:
    d = file.integer("llama.embedding_length")
    heads = file.integer("llama.attention.head_count")
    if heads == 0:
        raise GGUFError(f"{file.path}: llama.attention.head_count is 0, so the model has no attention")
    kv_heads = file.integer("llama.attention.head_count_kv", heads)
    if kv_heads == 0 or heads % kv_heads:
        raise GGUFError(f"{file.path}: {heads} heads cannot share {kv_heads} K/V heads")
    key_dim = file.integer("llama.attention.key_length", d // heads)
    return ReferenceSizes(
        d=d,
        layers=file.integer("llama.block_count"),
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=file.integer("llama.attention.value_length", d // heads),
        vocabulary=file.info("token_embd.weight").shape[0],
        epsilon=file.number("llama.attention.layer_norm_rms_epsilon"),
        # A key attention.scale is read for other architectures only, in llama.cpp too.
        attention_scale=1 / math.sqrt(key_dim),
    )


def _read_rope(file: GGUFFile, key_dim: int) -> tuple[Tensor, float]:
    """Angle per position of every pair, float64 [rotary_dim / 2], and the factor on cos and sin.

    llama.cpp: theta_i = base^(-2i / rotary_dim) / (scaling factor * rope_freqs_i).
    """
    kind = file.text("llama.rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{file.path}: there is no reference for the rope scaling {kind!r}; "
            "only 'none' and 'linear' can be validated"
        )
    factor = file.number("llama.rope.scaling.factor", file.number("llama.rope.scale_linear", 1.0))
    if kind == "none" or factor == 0:
        factor = 1.0
    rotary = file.integer("llama.rope.dimension_count", key_dim)
    if rotary == 0 or rotary % 2 or rotary > key_dim:
        raise GGUFError(f"{file.path}: {rotary} rotary dimensions do not fit heads of {key_dim}")
    base = file.number("llama.rope.freq_base", 10000.0)
    exponents = torch.arange(0, rotary, 2, dtype=torch.float64) / rotary
    frequencies = base**-exponents / factor
    if "rope_freqs.weight" in file.tensors:
        factors = torch.tensor(file.rows("rope_freqs.weight")).double().flatten()
        if len(factors) != len(frequencies):
            raise GGUFError(
                f"{file.path}: rope_freqs.weight has {len(factors)} factors, not {len(frequencies)}"
            )
        frequencies = frequencies / factors
    return frequencies, file.number("llama.rope.scaling.attn_factor", 1.0)
