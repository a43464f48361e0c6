"""An independent fp32 implementation of every model family, read directly from the GGUF.

What a GGUF means is what llama.cpp computes. The facts of the file (family, sizes, rope angles) come from
`convert.source`, which tests compare with results of transformers and llama.cpp. Nothing is shared with the
building of graphs: there are no blocks, lanes, pads, slots, masks as inputs, reordered rows or quantisation.

All rows of a layer are computed together, so that each weight is read once. Only attention combines rows: a
row sees the rows of its own sequence that are not after it and that its window reaches. A test
(tests/validate/row_by_row.py) compares this with the same functions on one row at a time, for every family.

Everything is numpy, which executes no shard: the reference shares no numeric library with the backends that
it judges.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import HeadNorm, RopeStyle, WeightlessNorm
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
from anespec.gguf.container import GGUFFile
from anespec.system.errors import GGUFError
from anespec.validate.golden.closeness import Floats
from anespec.validate.golden.reference_attention import (
    Caches,
    LayerCache,
    Stretch,
    activated,
    attended_values,
    rms_norm,
    softcapped,
)

HEAD_ROWS_AT_ONCE = 16384
"""The rows of the output projection that are held at once."""

ROWS_AT_ONCE = 1024
"""The rows of hidden states that go through an MLP at once."""

Positions = NDArray[np.float64]
"""The positions of rows, [rows, 1, 1]; or of one row, without axes."""


_SILENT = np.errstate(all="ignore")
"""Weights may not be finite; the results are judged without numpy's warnings."""


@dataclass(frozen=True)
class _Projection:
    weight: Floats
    bias: Floats | None

    def __call__(self, x: Floats) -> Floats:
        """Return the projection of rows [..., columns]."""
        product: Floats = x @ self.weight.T
        if self.bias is not None:
            product += self.bias
        return product


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer by role; tensors that the layer does not have are absent."""

    projections: Mapping[str, _Projection]
    norms: Mapping[str, Floats]
    frequencies: NDArray[np.float64]
    magnitude: float
    output_scale: float


class Matrices(Protocol):
    """The source of the reference's projections: the GGUF, or the stored weights of an artifact."""

    def rows(self, name: str, rows: slice | None = None) -> Floats:
        """Return rows of a tensor in the GGUF's order, float32 (rows, in)."""
        ...


class Reference:
    """The model of a GGUF, in float32.

    Weights are dequantised when first used, and at most `resident_layers` layers are held at once. `context`
    is the artifact's, from which LongRoPE's factors follow.
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

    def caches(self) -> Caches:
        """Return empty caches for one sequence."""
        return {layer.index: LayerCache(layer) for layer in self.facts.layers if layer.owns_kv}

    @_SILENT
    def embed(self, ids: Sequence[int]) -> Floats:
        """Return the first hidden state, float32 [len(ids), d]; raises GGUFError if a value is not finite."""
        return self._rows(EMBEDDING, ids) * self.facts.embedding_scale

    def stretches(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Stretch]:
        """Return new sequences, each from the token ids and the positions of its rows."""
        own = self._per_layer_inputs([token for ids, _ in sequences for token in ids])
        counts = [len(ids) for ids, _ in sequences]
        parts = [None] * len(counts) if own is None else split_rows(own, counts)
        return [
            Stretch(np.array(positions, np.int64), self.caches(), part)
            for (_, positions), part in zip(sequences, parts, strict=True)
        ]

    @_SILENT
    def layer(self, index: int, hidden: Floats, stretches: Sequence[Stretch]) -> Floats:
        """Run one layer over the rows of several sequences, which are concatenated.

        A row attends to the rows of its own sequence, cached or given here, at its position or before it, as
        far back as its window reaches. `hidden` is float32 [rows of all stretches, d], and so is the result.
        """
        layer, facts = self._layer(index), self.facts.layers[index]
        hidden = self._attention(layer, facts, hidden, stretches)
        parts = [stretch.own[:, index] for stretch in stretches if stretch.own is not None]
        own = np.concatenate(parts) if parts else None
        done = []
        for first in range(0, len(hidden), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            done.append(self._after_attention(layer, hidden[some], None if own is None else own[some]))
        return np.concatenate(done)

    def layers(
        self,
        first: int,
        end: int,
        hidden: Floats,
        positions: Sequence[int],
        caches: Caches,
        ids: Sequence[int],
    ) -> Floats:
        """Run layers first..end-1 over rows of one sequence, float32 [rows, d].

        Row i is at `positions[i]`. It attends to the rows that its window reaches, in the caches and before
        it here; the caches are extended. If layers have embeddings of their own, row i takes those of
        `ids[i]`. Returns float32 [rows, d].
        """
        (stretch,) = self.stretches([(ids, positions)])
        stretch = replace(stretch, caches=caches)
        for index in range(first, end):
            hidden = self.layer(index, hidden, [stretch])
        return hidden

    def hidden_states(self, windows: Sequence[Sequence[int]]) -> list[Floats]:
        """Return the last layer's output for each window, which starts at position 0: float32 [rows, d] each.

        Every layer is loaded once. The hidden states of all windows are held at once; keys and values are
        dropped after the last layer that reads them.
        """
        stretches = self.stretches([(ids, range(len(ids))) for ids in windows])
        hidden = self.embed([token for ids in windows for token in ids])
        last_reader = {facts.kv_layer: facts.index for facts in self.facts.layers}
        for facts in self.facts.layers:
            hidden = self.layer(facts.index, hidden, stretches)
            if last_reader[facts.kv_layer] == facts.index:
                for stretch in stretches:
                    del stretch.caches[facts.kv_layer]
        return split_rows(hidden, [len(ids) for ids in windows])

    @_SILENT
    def logits(self, hidden: Floats, first_token: int = 0, end_token: int | None = None) -> Floats:
        """Return the logits of tokens first_token..end_token-1: the final norm and the output projection.

        `hidden` is float32 [rows, d]; returns float32 [rows, end_token - first_token].
        """
        end_token = self.facts.vocabulary if end_token is None else end_token
        normed = self._norm(hidden, self._vector(OUTPUT_NORM))
        logits: Floats = np.empty((len(hidden), end_token - first_token), np.float32)
        for start in range(first_token, end_token, HEAD_ROWS_AT_ONCE):
            stop = min(start + HEAD_ROWS_AT_ONCE, end_token)
            weight = self._matrices.rows(self._model.head_tensor, slice(start, stop))
            logits[:, start - first_token : stop - first_token] = normed @ weight.T
        logits *= self.facts.logit_scale
        return softcapped(logits, self.facts.logit_softcap)

    def _attention(self, layer: Layer, facts: LayerFacts, x: Floats, stretches: Sequence[Stretch]) -> Floats:
        """Return the attention of the rows [rows, d] of several sequences, each within its own sequence."""
        counts = [len(stretch.positions) for stretch in stretches]
        positions = np.concatenate([stretch.positions for stretch in stretches]).astype(np.float64)
        positions = positions[:, None, None]
        taken = self._attention_input(layer, x)
        queries = split_rows(self._queries(layer, facts, taken, positions), counts)
        if facts.owns_kv:
            keys = split_rows(self._keys(layer, facts, taken, positions), counts)
            values = split_rows(self._values(layer, facts, taken), counts)
            for stretch, its_keys, its_values in zip(stretches, keys, values, strict=True):
                stretch.caches[facts.index].append(its_keys, its_values, stretch.positions)
        softcap = self.facts.attention_softcap
        mixed = [attended_values(facts, softcap, *pair) for pair in zip(queries, stretches, strict=True)]
        return self._attended(layer, x, np.concatenate(mixed))

    # The methods below take rows [rows, d] at positions [rows, 1, 1], or one row [d] at one position.

    def _attention_input(self, layer: Layer, x: Floats) -> Floats:
        norm = self.facts.family.norms.attention
        return x if norm is None else self._norm(x, layer.norms[norm])

    def _queries(self, layer: Layer, facts: LayerFacts, x: Floats, position: Positions) -> Floats:
        """Return queries, rotated and scaled by the temperature of their position: [..., heads, head_dim]."""
        return self._heads(layer, facts, Q, x, position) * self._temperature(position)

    def _keys(self, layer: Layer, facts: LayerFacts, x: Floats, position: Positions) -> Floats:
        """Return keys, rotated: [..., n_kv, head_dim]."""
        return self._heads(layer, facts, K, x, position)

    def _values(self, layer: Layer, facts: LayerFacts, x: Floats) -> Floats:
        """Return values: [..., n_kv, head_dim]."""
        projected = layer.projections[V if V in layer.projections else K](x)
        value = projected.reshape(*x.shape[:-1], facts.kv_heads, facts.head_dim)
        if self.facts.family.value_norm is WeightlessNorm.EACH_HEAD:
            value = rms_norm(value, self.facts.epsilon)
        return value

    def _attended(self, layer: Layer, x: Floats, mixed: Floats) -> Floats:
        """Return the hidden state after attention; `mixed` are the outputs of the heads, concatenated."""
        norm, mixed = self.facts.family.norms.after_attention, layer.projections[ATTENTION_OUTPUT](mixed)
        if norm is not None:
            mixed = self._norm(mixed, layer.norms[norm])
        return x + mixed * self.facts.residual_scale

    def _after_attention(self, layer: Layer, x: Floats, own: Floats | None) -> Floats:
        """Return the result of the rest of a layer; `own` are the rows of the layer's own embeddings."""
        x = self._mlp(layer, x)
        if own is not None:
            x = self._add_own_input(layer, x, own)
        return x * layer.output_scale

    def _heads(self, layer: Layer, facts: LayerFacts, role: str, x: Floats, position: Positions) -> Floats:
        """Return queries or keys, normalised and rotated: [..., heads, head_dim]."""
        kind, norm = self.facts.family.head_norm, layer.norms.get(Q_NORM if role == Q else K_NORM)
        projected = layer.projections[role](x)
        if norm is not None and kind is HeadNorm.ALL_HEADS:
            projected = self._norm(projected, norm)
        heads = projected.reshape(*x.shape[:-1], -1, facts.head_dim)
        if norm is not None and kind is HeadNorm.BEFORE_ROPE:
            heads = self._norm(heads, norm)
        heads = self._rotate(layer, heads, position)
        if norm is not None and kind is HeadNorm.AFTER_ROPE:
            heads = self._norm(heads, norm)
        return heads

    def _mlp(self, layer: Layer, x: Floats) -> Floats:
        norms = self.facts.family.norms
        taken = x if norms.mlp is None else self._norm(x, layer.norms[norms.mlp])
        gate = activated(layer.projections[GATE](taken), self.facts.family.activation)
        mixed = layer.projections[DOWN](gate * layer.projections[UP](taken))
        if norms.after_mlp is not None:
            mixed = self._norm(mixed, layer.norms[norms.after_mlp])
        return x + mixed * self.facts.residual_scale

    def _add_own_input(self, layer: Layer, x: Floats, own: Floats) -> Floats:
        gate = activated(layer.projections[INPUT_GATE](x), self.facts.family.activation)
        return x + self._norm(layer.projections[INPUT_PROJECTION](gate * own), layer.norms[INPUT_NORM])

    def _per_layer_inputs(self, ids: Sequence[int]) -> Floats | None:
        """Return the inputs of layers with embeddings of their own, [rows, layers, width], or None."""
        width = self.facts.per_layer_width
        if not width:
            return None
        weight = self._matrices.rows(PER_LAYER_PROJECTION)
        norm, shape = self._vector(PER_LAYER_NORM), (len(ids), len(self.facts.layers), width)
        projected = (self.embed(ids) @ weight.T / math.sqrt(self.facts.hidden_size)).reshape(shape)
        looked_up = self._rows(PER_LAYER_EMBEDDING, ids).reshape(shape) * math.sqrt(width)
        both = self._norm(projected, norm) + looked_up
        return np.asarray(both / math.sqrt(2), np.float32)

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        return rms_norm(x, self.facts.epsilon) * weight

    def _temperature(self, position: Positions) -> Floats:
        temperature = self._model.temperature(self._context)
        if temperature is None:
            return np.ones((), np.float32)
        growth = 1 + temperature.scale * np.log1p(position // temperature.step)
        return np.asarray(growth, np.float32)

    def _rotate(self, layer: Layer, heads: Floats, position: Positions) -> Floats:
        """Rotate each pair of the rotary part by position * its frequency; [..., heads, head_dim]."""
        angles = position * layer.frequencies
        cos = (np.cos(angles) * layer.magnitude).astype(np.float32)
        sin = (np.sin(angles) * layer.magnitude).astype(np.float32)
        half = len(layer.frequencies)
        rotated: Floats = heads.copy()
        pairs = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        if self.facts.rope_style is not RopeStyle.GPTJ:
            pairs = slice(0, half), slice(half, 2 * half)
        first, second = (heads[..., some] for some in pairs)
        rotated[..., pairs[0]] = first * cos - second * sin
        rotated[..., pairs[1]] = first * sin + second * cos
        return rotated

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
            frequencies=np.array(angles.frequencies if angles else (), np.float64),
            magnitude=angles.magnitude if angles else 1.0,
            output_scale=float(self._vector(scale)[0]) if scale in self._file.tensors else 1.0,
        )
        self._loaded[index] = layer
        return layer

    def _projection(self, facts: LayerFacts, role: str) -> _Projection:
        found = self._model.tensor_rows(facts, role)
        rows, bias = slice(found.rows.start, found.rows.stop), bias_name(found.name)
        return _Projection(
            self._matrices.rows(found.name, rows),
            self._vector(bias)[rows] if bias in self._file.tensors else None,
        )

    def _rows(self, name: str, ids: Sequence[int]) -> Floats:
        rows = self._file.rows(name, np.asarray(ids, dtype=np.int64))
        if not np.isfinite(rows).all():
            raise GGUFError(f"{self._file.path}: tensor {name!r} holds values that are not finite")
        return rows

    def _vector(self, name: str) -> Floats:
        return self._file.rows(name).flatten()


def split_rows(rows: Floats, counts: Sequence[int]) -> list[Floats]:
    """Split rows into consecutive parts of these counts."""
    return np.split(rows, np.cumsum(counts)[:-1])
