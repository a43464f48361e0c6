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
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import (
    HeadNorm,
    WeightlessNorm,
)
from anespec.convert.source.facts import (
    EMBEDDING,
    POSITION_EMBEDDING,
    AttentionFacts,
    LatentFacts,
    LayerFacts,
    ShortConvFacts,
)
from anespec.convert.source.model import (
    ATTENTION_OUTPUT,
    CONV_IN,
    CONV_OUT,
    DOWN,
    GATE,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    K_NORM,
    OUTPUT,
    OUTPUT_GATE,
    PER_LAYER_EMBEDDING,
    PER_LAYER_NORM,
    PER_LAYER_PROJECTION,
    Q_NORM,
    UP,
    K,
    Q,
    SourceModel,
    V,
)
from anespec.gguf.container import GGUFFile
from anespec.validate.golden.reference_latent import latent_rows
from anespec.validate.golden.reference_layers import FileMatrices, LayerReader, Matrices
from anespec.validate.golden.reference_layers import Layer as Layer
from anespec.validate.golden.reference_parts import (
    Caches,
    Doubts,
    LayerCache,
    Stretch,
    activated,
    attended_values,
    cache_key,
    cache_of,
    convolved,
    gated,
    rms_norm,
    rotated,
    softcapped,
    split_rows,
)
from anespec.validate.golden.reference_recurrent import recurrent_rows
from anespec.validate.golden.rounding import Floats

HEAD_ROWS_AT_ONCE = 16384
"""The rows of the output projection that are held at once."""

ROWS_AT_ONCE = 1024
"""The rows of hidden states that go through an MLP at once."""

Positions = NDArray[np.float64]
"""The positions of rows, [rows, 1, 1]; or of one row, without axes."""


_SILENT = np.errstate(all="ignore")
"""Weights may not be finite; the results are judged without numpy's warnings."""


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
        self._model = SourceModel(file)
        self._context = context
        own = FileMatrices(file)
        self._reader = LayerReader(file, matrices or own, self._model, context, resident_layers)
        self.facts = self._model.facts

    def caches(self) -> Caches:
        """Return empty caches for one sequence."""
        return {cache_key(each): cache_of(each) for each in self.facts.mixers if each.kv_layer == each.index}

    def score_of_biases(self) -> float:
        """Return how large a score of attention the biases of queries and keys alone may make."""
        largest = 0.0
        for layer in self.facts.layers:
            facts = layer.attention
            if not isinstance(facts, AttentionFacts) or facts.kv_layer != facts.index:
                continue
            found = [self._model.tensor_rows(layer, role) for role in (Q, K)]
            biases = [self._reader.bias(each.name) for each in found]
            sizes = [
                float(np.linalg.norm(bias[each.rows].reshape(-1, facts.head_dim), axis=1).max())
                for each, bias in zip(found, biases, strict=True)
                if bias is not None
            ]
            if len(sizes) == len(found):
                largest = max(largest, sizes[0] * sizes[1] * abs(facts.scale))
        return largest

    @_SILENT
    def embed(self, ids: Sequence[int], positions: Sequence[int] | None = None) -> Floats:
        """Return the first hidden state of ids, float32 [len(ids), d]; raises GGUFError if one is not finite.

        `positions` are those of the ids, by default from 0 on.
        """
        rows = self._reader.rows(EMBEDDING, ids)
        if self.facts.family.norms_embedding:
            rows = rms_norm(rows, self.facts.epsilon)
        rows = rows * self.facts.embedding_scale
        if self.facts.positions is None:
            return rows
        return rows + self._reader.rows(
            POSITION_EMBEDDING, range(len(ids)) if positions is None else positions
        )

    def stretches(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Stretch]:
        """Return new sequences, each from the token ids and the positions of its rows."""
        own = self._per_layer_inputs([token for ids, _ in sequences for token in ids])
        counts = [len(ids) for ids, _ in sequences]
        parts = [None] * len(counts) if own is None else split_rows(own, counts)
        return [
            Stretch(np.array(positions, np.int64), self.caches(), part, Doubts.none(len(positions)))
            for (_, positions), part in zip(sequences, parts, strict=True)
        ]

    @_SILENT
    def layer(self, index: int, hidden: Floats, stretches: Sequence[Stretch]) -> Floats:
        """Run one layer over the rows of several sequences, which are concatenated.

        A row attends to the rows of its own sequence, cached or given here, at its position or before it, as
        far back as its window reaches. `hidden` is float32 [rows of all stretches, d], and so is the result.
        """
        layer, facts, before = self._reader.layer(index), self.facts.layers[index], hidden
        for stretch in stretches:
            stretch.doubts.enter_layer()
        hidden = self._mixed(layer, facts, hidden, stretches)
        parts = [stretch.own[:, index] for stretch in stretches if stretch.own is not None]
        own = np.concatenate(parts) if parts else None
        done, changes = [], np.zeros(len(hidden), np.float32)
        for first in range(0, len(hidden), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            given = None if own is None else own[some]
            done.append(self._after_mixers(layer, hidden[some], before[some], given, changes[some]))
        if layer.mixture is not None:
            counts = [len(stretch.positions) for stretch in stretches]
            for stretch, its_changes in zip(stretches, split_rows(changes, counts), strict=True):
                stretch.doubts.exchange(its_changes)
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
        places = [place for ids in windows for place in range(len(ids))]
        hidden = self.embed([token for ids in windows for token in ids], places)
        last_reader = {cache_key(mixer): mixer.index for mixer in self.facts.mixers}
        for facts in self.facts.layers:
            hidden = self.layer(facts.index, hidden, stretches)
            for unused in [source for source, last in last_reader.items() if last == facts.index]:
                for stretch in stretches:
                    del stretch.caches[unused]
        return split_rows(hidden, [len(ids) for ids in windows])

    @_SILENT
    def logits(self, hidden: Floats, first_token: int = 0, end_token: int | None = None) -> Floats:
        """Return the logits of tokens first_token..end_token-1: the final norm and the output projection.

        `hidden` is float32 [rows, d]; returns float32 [rows, end_token - first_token].
        """
        (logits,) = self.logits_of_runs([hidden], first_token, end_token)
        return logits

    @_SILENT
    def logits_of_runs(
        self, runs: Sequence[Floats], first_token: int = 0, end_token: int | None = None
    ) -> list[Floats]:
        """Return the `logits` of several runs, whose rows may be rounded apart; each weight is read once."""
        end_token = self.facts.vocabulary if end_token is None else end_token
        normed = [self._reader.hidden_norm(self._model.final_norm)(hidden) for hidden in runs]
        bias = self._reader.bias(OUTPUT)
        found = [np.empty((len(hidden), end_token - first_token), np.float32) for hidden in runs]
        for start in range(first_token, end_token, HEAD_ROWS_AT_ONCE):
            stop = min(start + HEAD_ROWS_AT_ONCE, end_token)
            weight = self._reader.matrices.rows(self._model.head_tensor, slice(start, stop))
            for rows, logits in zip(normed, found, strict=True):
                logits[:, start - first_token : stop - first_token] = rows @ weight.T
        for logits in found:
            if bias is not None:
                logits += bias[first_token:end_token]
            logits *= self.facts.logit_scale
        return [softcapped(logits, self.facts.logit_softcap) for logits in found]

    def _mixed(self, layer: Layer, facts: LayerFacts, x: Floats, stretches: Sequence[Stretch]) -> Floats:
        """Return the hidden states [rows, d] of several sequences after the layer's mixers."""
        if not facts.mixers:
            return x
        taken, outputs = self._attention_input(layer, x), list[Floats]()
        for mixer in facts.mixers:
            if isinstance(mixer, AttentionFacts):
                outputs.append(self._attention(layer, mixer, taken, stretches))
            elif isinstance(mixer, LatentFacts):
                parts = (layer.projections, layer.norms, layer.frequencies, layer.magnitude)
                outputs.append(latent_rows(mixer, *parts, taken, stretches))
            elif isinstance(mixer, ShortConvFacts):
                outputs.append(self._short_convolution(layer, mixer, taken, stretches))
            elif (recurrent := layer.recurrent) is not None:
                outputs.append(recurrent_rows(mixer, recurrent, layer.projections, taken, stretches))
        return self._add_mixed(layer, x, sum(outputs[1:], outputs[0]))

    def _short_convolution(
        self, layer: Layer, facts: ShortConvFacts, taken: Floats, stretches: Sequence[Stretch]
    ) -> Floats:
        """Return the gated convolution of rows [rows, d], each over the inputs of its own sequence."""
        before, after, own = np.split(layer.projections[CONV_IN](taken), 3, axis=-1)
        parts = split_rows(before * own, [len(stretch.positions) for stretch in stretches])
        mixed = [
            convolved(stretch, facts, inputs, layer.kernel)
            for inputs, stretch in zip(parts, stretches, strict=True)
        ]
        return layer.projections[CONV_OUT](after * np.concatenate(mixed))

    def _attention(
        self, layer: Layer, facts: AttentionFacts, taken: Floats, stretches: Sequence[Stretch]
    ) -> Floats:
        """Return the attention of the rows [rows, d] of several sequences, each within its own sequence."""
        counts = [len(stretch.positions) for stretch in stretches]
        positions = np.concatenate([stretch.positions for stretch in stretches]).astype(np.float64)
        positions = positions[:, None, None]
        queries = split_rows(self._queries(layer, facts, taken, positions), counts)
        if facts.owns_kv:
            keys = split_rows(self._keys(layer, facts, taken, positions), counts)
            values = split_rows(self._values(layer, facts, taken), counts)
            for stretch, its_keys, its_values in zip(stretches, keys, values, strict=True):
                cache = stretch.caches[cache_key(facts)]
                assert isinstance(cache, LayerCache)
                cache.append(its_keys, its_values, stretch.positions)
        softcap = self.facts.attention_softcap
        mixed = [
            attended_values(facts, softcap, *pair, self._model.sinks(facts))
            for pair in zip(queries, stretches, strict=True)
        ]
        return self._attended(layer, taken, np.concatenate(mixed))

    # The methods below take rows [rows, d] at positions [rows, 1, 1], or one row [d] at one position.

    def _attention_input(self, layer: Layer, x: Floats) -> Floats:
        norm = layer.roles.attention
        return x if norm is None else layer.norms[norm](x)

    def _queries(self, layer: Layer, facts: AttentionFacts, x: Floats, position: Positions) -> Floats:
        """Return queries, rotated and scaled by the temperature of their position: [..., heads, head_dim]."""
        return self._heads(layer, facts, Q, x, position) * self._temperature(position)

    def _keys(self, layer: Layer, facts: AttentionFacts, x: Floats, position: Positions) -> Floats:
        """Return keys, rotated: [..., n_kv, head_dim]."""
        return self._heads(layer, facts, K, x, position)

    def _values(self, layer: Layer, facts: AttentionFacts, x: Floats) -> Floats:
        """Return values: [..., n_kv, head_dim]."""
        projected = self._clamped(layer.projections[V if V in layer.projections else K](x))
        value = projected.reshape(*x.shape[:-1], facts.kv_heads, facts.head_dim)
        if self.facts.family.value_norm is WeightlessNorm.EACH_HEAD:
            value = rms_norm(value, self.facts.epsilon)
        return value

    def _attended(self, layer: Layer, taken: Floats, mixed: Floats) -> Floats:
        """Return attention's output; `mixed` are the outputs of the heads, concatenated.

        They are multiplied by the sigmoid of a projection of `taken` if there is one.
        """
        if OUTPUT_GATE in layer.projections:
            mixed = np.asanyarray(mixed / (1 + np.exp(-layer.projections[OUTPUT_GATE](taken))), np.float32)
        return layer.projections[ATTENTION_OUTPUT](mixed)

    def _add_mixed(self, layer: Layer, x: Floats, mixed: Floats) -> Floats:
        """Return the hidden state after the mixers, whose outputs add up to `mixed`."""
        norm = self.facts.family.norms.after_attention
        if norm is not None:
            mixed = layer.norms[norm](mixed)
        return x + mixed * self.facts.residual_scale

    def _after_mixers(
        self, layer: Layer, x: Floats, before: Floats, own: Floats | None, changes: Floats | None = None
    ) -> Floats:
        """Return the result of the rest of a layer.

        `x` is the hidden state after the mixers, `before` the one before the layer; `own` are the rows of the
        layer's own embeddings. `changes` are overwritten by what another choice of experts would change.
        """
        x = self._mlp(layer, x, before, changes)
        if own is not None:
            x = self._add_own_input(layer, x, own)
        return x * layer.output_scale

    def _heads(
        self, layer: Layer, facts: AttentionFacts, role: str, x: Floats, position: Positions
    ) -> Floats:
        """Return queries or keys, normalised and rotated: [..., heads, head_dim]."""
        kind, norm = self.facts.family.head_norm, layer.norms.get(Q_NORM if role == Q else K_NORM)
        projected = self._clamped(layer.projections[role](x))
        if norm is not None and kind is HeadNorm.ALL_HEADS:
            projected = norm(projected)
        heads = projected.reshape(*x.shape[:-1], -1, facts.head_dim)
        if norm is not None and kind in (HeadNorm.BEFORE_ROPE, HeadNorm.LAYER_BEFORE_ROPE):
            heads = norm(heads)
        heads = rotated(heads, position, layer.frequencies, layer.magnitude, self.facts.rope_style)
        if norm is not None and kind is HeadNorm.AFTER_ROPE:
            heads = norm(heads)
        return heads

    def _mlp(self, layer: Layer, x: Floats, before: Floats, changes: Floats | None = None) -> Floats:
        norms = layer.roles
        if layer.activation is None:
            return x
        if layer.is_parallel and norms.mlp is None:
            taken = self._attention_input(layer, before)
        else:
            entered = before if layer.is_parallel else x
            taken = entered if norms.mlp is None else layer.norms[norms.mlp](entered)
        if layer.mixture is not None:
            found = layer.mixture(np.atleast_2d(taken), np.atleast_2d(x))
            mixed = self._added(layer, found.outputs.reshape(taken.shape))
            if changes is not None:
                other = self._added(layer, found.otherwise)
                changes[:] = np.linalg.norm(other - mixed, axis=-1) * layer.output_scale
            return x + mixed
        if self.facts.family.gated:
            middle = gated(layer.projections[GATE](taken), layer.projections[UP](taken), layer.activation)
        else:
            middle = activated(layer.projections[UP](taken), layer.activation)
        return x + self._added(layer, layer.projections[DOWN](middle))

    def _added(self, layer: Layer, mixed: Floats) -> Floats:
        """Return what the feed forward's output adds to the hidden state."""
        if (norm := layer.roles.after_mlp) is not None:
            mixed = layer.norms[norm](mixed)
        return mixed * self.facts.residual_scale

    def _add_own_input(self, layer: Layer, x: Floats, own: Floats) -> Floats:
        assert layer.activation is not None
        gate = activated(layer.projections[INPUT_GATE](x), layer.activation)
        return x + layer.norms[INPUT_NORM](layer.projections[INPUT_PROJECTION](gate * own))

    def _per_layer_inputs(self, ids: Sequence[int]) -> Floats | None:
        """Return the inputs of layers with embeddings of their own, [rows, layers, width], or None."""
        width = self.facts.per_layer_width
        if not width:
            return None
        weight = self._reader.matrices.rows(PER_LAYER_PROJECTION)
        norm, shape = self._reader.norm(PER_LAYER_NORM), (len(ids), len(self.facts.layers), width)
        projected = (self.embed(ids) @ weight.T / math.sqrt(self.facts.hidden_size)).reshape(shape)
        looked_up = self._reader.rows(PER_LAYER_EMBEDDING, ids).reshape(shape) * math.sqrt(width)
        both = norm(projected) + looked_up
        return np.asanyarray(both / math.sqrt(2), np.float32)

    def _clamped(self, x: Floats) -> Floats:
        clamp = self.facts.attention_clamp
        return x if clamp is None else np.clip(x, -clamp, clamp)

    def _temperature(self, position: Positions) -> Floats:
        temperature = self._model.temperature(self._context)
        if temperature is None:
            return np.ones((), np.float32)
        growth = 1 + temperature.scale * np.log1p(position // temperature.step)
        return np.asanyarray(growth, np.float32)
