"""An independent fp32 implementation of every family, read straight from the GGUF.

What the file says (families, sizes, rope angles) it has from `convert.source`, as tests against
transformers' and llama.cpp's results prove it. Nothing of how a graph is built is shared: no block, no mask,
no reordered rows, no quantisation. It computes one row at a time, so that no mistake about blocks can
hide in both. What llama.cpp computes is what a GGUF means.
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

from anespec.convert.architectures.family import Activation, HeadNorm, RopeLayout, WeightlessNorm
from anespec.convert.source.facts import EMBEDDING, LayerFacts
from anespec.convert.source.model import (
    ATTENTION_OUTPUT,
    DOWN,
    GATE,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    K_NORM,
    LAYER_SCALE,
    OUTPUT_NORM,
    PER_LAYER_EMBEDDING,
    PER_LAYER_NORM,
    PER_LAYER_PROJECTION,
    Q_NORM,
    UP,
    K,
    Q,
    SourceModel,
    V,
    bias_name,
    tensor_name,
)
from anespec.manifests.errors import GGUFError
from anespec.manifests.gguf_file import GGUFFile

HEAD_ROWS_AT_ONCE = 16384


class LayerCache:
    """Keys (after rope) and values of one layer for the rows so far: [n_kv, rows, head_dim]."""

    def __init__(self, layer: LayerFacts) -> None:
        self.keys = torch.zeros(layer.kv_heads, 0, layer.head_dim)
        self.values = torch.zeros(layer.kv_heads, 0, layer.head_dim)
        self.positions: list[int] = []

    def append(self, key: Tensor, value: Tensor, position: int) -> None:
        """Add one row: `key` and `value` are [n_kv, head_dim]."""
        self.keys = torch.cat((self.keys, key[:, None]), dim=1)
        self.values = torch.cat((self.values, value[:, None]), dim=1)
        self.positions.append(position)

    def visible(self, position: int, window: int | None) -> list[int]:
        """The rows that a row at `position` attends to."""
        oldest = 0 if window is None else position - window + 1
        return [row for row, place in enumerate(self.positions) if oldest <= place <= position]


@dataclass(frozen=True)
class _Projection:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Of one row [columns], or of several [rows, columns]."""
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer by role; what it does not have is not there."""

    projections: dict[str, _Projection]
    norms: dict[str, Tensor]
    frequencies: Tensor
    magnitude: float
    output_scale: float


class Matrices(Protocol):
    """Where the reference takes its projections from: the GGUF, or what a conversion made of them."""

    def rows(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        """Rows of a tensor in the GGUF's order, float32 (rows, in)."""
        ...


class Reference:
    """The model in a GGUF, in float32, a row at a time.

    Weights are dequantised when first used; `resident_layers` of them at most are held at once.
    `context` is that of the artifact: LongRoPE's factors follow from it.
    """

    def __init__(
        self, file: GGUFFile, context: int, resident_layers: int = 1, matrices: Matrices | None = None
    ) -> None:
        """Read the facts of `file`, which must stay open while the reference is used.

        Projections come from `matrices`, by default from the file too; all else comes from the file.

        Raises:
            GGUFError: a hyperparameter is missing or unfit.
            UnsupportedModelError: the architecture or its rope scaling is not implemented.
        """
        self._file = file
        self._matrices: Matrices = file if matrices is None else matrices
        self._model = SourceModel(file)
        self._context = context
        self._resident_layers = max(1, resident_layers)
        self._loaded: OrderedDict[int, Layer] = OrderedDict()
        self.facts = self._model.facts

    def caches(self) -> list[LayerCache]:
        """Empty caches for one sequence, one per layer of the model."""
        return [LayerCache(layer) for layer in self.facts.layers]

    def embed(self, ids: Sequence[int]) -> Tensor:
        """The first hidden state: float32 [len(ids), d]; raises GGUFError where one is not finite."""
        return self._rows(EMBEDDING, ids) * self.facts.embedding_scale

    def layers(
        self,
        first: int,
        end: int,
        hidden: Tensor,
        positions: Sequence[int],
        caches: Sequence[LayerCache],
        ids: Sequence[int],
    ) -> Tensor:
        """Run layers first..end-1 over rows of `hidden`, float32 [rows, d], one after the other.

        Row i stands at `positions[i]` and attends to what its window reaches of the caches, which it
        extends. `caches` is indexed by layer. Where layers have embeddings of their own, row i takes
        those of `ids[i]`. Returns float32 [rows, d].

        A layer is finished for all rows before the next is loaded; since a row only ever looks back,
        that equals whole single-row passes in order.
        """
        own = self._per_layer_inputs(ids)
        for index in range(first, end):
            layer, facts = self._layer(index), self.facts.layers[index]
            cache = caches[facts.kv_layer]
            rows = []
            for number, (row, position) in enumerate(zip(hidden, positions, strict=True)):
                row = self._attention(layer, facts, row, position, cache)
                rows.append(self._after_attention(layer, row, None if own is None else own[number, index]))
            hidden = torch.stack(rows)
        return hidden

    def logits(self, hidden: Tensor, first_token: int = 0, end_token: int | None = None) -> Tensor:
        """Final norm and rows first_token..end_token-1 of the output projection.

        `hidden` is float32 [rows, d]; returns float32 [rows, end_token - first_token].
        """
        end_token = self.facts.vocabulary if end_token is None else end_token
        normed = self._norm(hidden, self._vector(OUTPUT_NORM))
        pieces = []
        for start in range(first_token, end_token, HEAD_ROWS_AT_ONCE):
            stop = min(start + HEAD_ROWS_AT_ONCE, end_token)
            weight = torch.tensor(self._matrices.rows(self._model.head_tensor, slice(start, stop)))
            pieces.append(self._head_rows(weight, normed))
        return capped(torch.cat(pieces, dim=1) * self.facts.logit_scale, self.facts.logit_cap)

    def _head_rows(self, weight: Tensor, normed: Tensor) -> Tensor:
        return torch.stack([weight @ row for row in normed])

    def _attention(
        self, layer: Layer, facts: LayerFacts, x: Tensor, position: int, cache: LayerCache
    ) -> Tensor:
        taken, place = self._attention_input(layer, x), torch.tensor(position, dtype=torch.float64)
        query = self._queries(layer, facts, taken, place)
        if facts.owns_kv:
            cache.append(self._keys(layer, facts, taken, place), self._values(layer, facts, taken), position)
        seen = cache.visible(position, facts.window)
        grouped = query.view(facts.kv_heads, facts.heads // facts.kv_heads, facts.head_dim)
        scores = grouped @ cache.keys[:, seen].transpose(1, 2) * facts.scale
        weights = torch.softmax(capped(scores, self.facts.score_cap), dim=-1)
        return self._attended(layer, x, (weights @ cache.values[:, seen]).reshape(-1))

    # What follows takes one row [d] at one position, or several rows [rows, d] and positions [rows, 1, 1].

    def _attention_input(self, layer: Layer, x: Tensor) -> Tensor:
        norm = self.facts.family.norms.attention
        return x if norm is None else self._norm(x, layer.norms[norm])

    def _queries(self, layer: Layer, facts: LayerFacts, x: Tensor, position: Tensor) -> Tensor:
        """Queries, rotated and as warm as their position: [..., heads, head_dim]."""
        return self._heads(layer, facts, Q, x, position) * self._temperature(position)

    def _keys(self, layer: Layer, facts: LayerFacts, x: Tensor, position: Tensor) -> Tensor:
        """Keys, rotated: [..., n_kv, head_dim]."""
        return self._heads(layer, facts, K, x, position)

    def _values(self, layer: Layer, facts: LayerFacts, x: Tensor) -> Tensor:
        """Values: [..., n_kv, head_dim]."""
        projected = layer.projections[V if V in layer.projections else K](x)
        value = projected.view(*x.shape[:-1], facts.kv_heads, facts.head_dim)
        if self.facts.family.value_norm is WeightlessNorm.EACH_HEAD:
            value = self._norm(value, torch.ones(facts.head_dim))
        return value

    def _attended(self, layer: Layer, x: Tensor, mixed: Tensor) -> Tensor:
        """The hidden state after attention; `mixed` are the heads' sums, side by side."""
        norm, mixed = self.facts.family.norms.after_attention, layer.projections[ATTENTION_OUTPUT](mixed)
        if norm is not None:
            mixed = self._norm(mixed, layer.norms[norm])
        return x + mixed * self.facts.residual_scale

    def _after_attention(self, layer: Layer, x: Tensor, own: Tensor | None) -> Tensor:
        """The rest of a layer; `own` is what it takes from embeddings of its own."""
        x = self._mlp(layer, x)
        if own is not None:
            x = self._add_own_input(layer, x, own)
        return x * layer.output_scale

    def _heads(self, layer: Layer, facts: LayerFacts, role: str, x: Tensor, position: Tensor) -> Tensor:
        """Queries or keys, normalised and rotated: [..., heads, head_dim]."""
        kind, norm = self.facts.family.head_norm, layer.norms.get(Q_NORM if role == Q else K_NORM)
        projected = layer.projections[role](x)
        if norm is not None and kind is HeadNorm.ALL_HEADS:
            projected = self._norm(projected, norm)
        heads = projected.view(*x.shape[:-1], -1, facts.head_dim)
        if norm is not None and kind is HeadNorm.BEFORE_ROPE:
            heads = self._norm(heads, norm)
        heads = self._rotate(layer, heads, position)
        if norm is not None and kind is HeadNorm.AFTER_ROPE:
            heads = self._norm(heads, norm)
        return heads

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        norms = self.facts.family.norms
        taken = x if norms.mlp is None else self._norm(x, layer.norms[norms.mlp])
        gate = self._activate(layer.projections[GATE](taken))
        mixed = layer.projections[DOWN](gate * layer.projections[UP](taken))
        if norms.after_mlp is not None:
            mixed = self._norm(mixed, layer.norms[norms.after_mlp])
        return x + mixed * self.facts.residual_scale

    def _add_own_input(self, layer: Layer, x: Tensor, own: Tensor) -> Tensor:
        gate = self._activate(layer.projections[INPUT_GATE](x))
        return x + self._norm(layer.projections[INPUT_PROJECTION](gate * own), layer.norms[INPUT_NORM])

    def _per_layer_inputs(self, ids: Sequence[int]) -> Tensor | None:
        """What layers with embeddings of their own take: [rows, layers, width]."""
        width = self.facts.per_layer_width
        if not width:
            return None
        weight = torch.tensor(self._matrices.rows(PER_LAYER_PROJECTION))
        norm, shape = self._vector(PER_LAYER_NORM), (len(ids), len(self.facts.layers), width)
        projected = (self.embed(ids) @ weight.T / math.sqrt(self.facts.d)).view(shape)
        looked_up = self._rows(PER_LAYER_EMBEDDING, ids).view(shape) * math.sqrt(width)
        return (self._norm(projected, norm) + looked_up) / math.sqrt(2)

    def _activate(self, x: Tensor) -> Tensor:
        match self.facts.family.activation:
            case Activation.SILU:
                return torch.nn.functional.silu(x)
            case Activation.GELU:
                return torch.nn.functional.gelu(x, approximate="tanh")

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.facts.epsilon) * weight

    def _temperature(self, position: Tensor) -> Tensor:
        temperature = self._model.temperature(self._context)
        if temperature is None:
            return torch.ones(())
        return (1 + temperature.scale * torch.log1p(position // temperature.step)).float()

    def _rotate(self, layer: Layer, heads: Tensor, position: Tensor) -> Tensor:
        """Turn each pair of the rotary part by position * its frequency; [..., heads, head_dim]."""
        angles = position * layer.frequencies
        cos = (torch.cos(angles) * layer.magnitude).float()
        sin = (torch.sin(angles) * layer.magnitude).float()
        half = len(layer.frequencies)
        rotary, passing = heads[..., : 2 * half], heads[..., 2 * half :]
        if self.facts.rope_layout is RopeLayout.INTERLEAVED:
            first, second = rotary[..., 0::2], rotary[..., 1::2]
            turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
        else:
            first, second = rotary[..., :half], rotary[..., half:]
            turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
        return torch.cat((turned, passing), dim=-1)

    def _layer(self, index: int) -> Layer:
        if index in self._loaded:
            self._loaded.move_to_end(index)
            return self._loaded[index]
        while len(self._loaded) >= self._resident_layers:
            self._loaded.popitem(last=False)
        facts, model = self.facts.layers[index], self._model
        angles = model.angles(facts, self._context)
        norms = [*self.facts.family.norms.roles, *model.head_norms(facts)]
        norms += [INPUT_NORM] if self.facts.per_layer_width else []
        scale = tensor_name(facts, LAYER_SCALE)
        layer = Layer(
            projections={role: self._projection(facts, role) for role in model.matrices(facts)},
            norms={role: self._vector(tensor_name(facts, role)) for role in norms},
            frequencies=torch.tensor(angles.frequencies if angles else (), dtype=torch.float64),
            magnitude=angles.magnitude if angles else 1.0,
            output_scale=float(self._vector(scale)[0]) if scale in self._file.tensors else 1.0,
        )
        self._loaded[index] = layer
        return layer

    def _projection(self, facts: LayerFacts, role: str) -> _Projection:
        place = self._model.place(facts, role)
        rows, bias = slice(place.rows.start, place.rows.stop), bias_name(place.name)
        return _Projection(
            torch.tensor(self._matrices.rows(place.name, rows)),
            self._vector(bias)[rows] if bias in self._file.tensors else None,
        )

    def _rows(self, name: str, ids: Sequence[int]) -> Tensor:
        rows = self._file.rows(name, np.asarray(ids, dtype=np.int64))
        if not np.isfinite(rows).all():
            raise GGUFError(f"{self._file.path}: tensor {name!r} holds values that are not finite")
        return torch.from_numpy(rows)

    def _vector(self, name: str) -> Tensor:
        return torch.tensor(self._file.rows(name)).flatten()


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Scores or logits softly bounded by `cap`, where there is one."""
    return x if cap is None else cap * torch.tanh(x / cap)
