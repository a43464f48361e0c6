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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anespec.convert.mixers.attention.facts import K, Q
from anespec.convert.mixers.kinds import AttentionFacts, DeltaFacts, LatentFacts, ShortConvFacts, SSDFacts
from anespec.convert.source.facts import EMBEDDING, POSITION_EMBEDDING, LayerFacts, MixerFacts
from anespec.convert.source.model import (
    DOWN,
    GATE,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    OUTPUT,
    PER_LAYER_EMBEDDING,
    PER_LAYER_NORM,
    PER_LAYER_PROJECTION,
    UP,
    SourceModel,
)
from anespec.gguf.container import GGUFFile
from anespec.validate.golden.mixers.attention import AttentionRows
from anespec.validate.golden.mixers.delta_net import delta_net
from anespec.validate.golden.mixers.latent import latent_attention
from anespec.validate.golden.mixers.mamba2 import mamba2
from anespec.validate.golden.mixers.short_conv import short_convolution
from anespec.validate.golden.reference_layers import FileMatrices, LayerReader, Matrices
from anespec.validate.golden.reference_layers import Layer as Layer
from anespec.validate.golden.reference_parts import (
    Caches,
    Doubts,
    Stretch,
    activated,
    by_sequence,
    cache_key,
    cache_of,
    gated,
    rms_norm,
    softcapped,
    split_rows,
)
from anespec.validate.golden.rounding import Floats

HEAD_ROWS_AT_ONCE = 16384
"""The rows of the output projection that are held at once."""

ROWS_AT_ONCE = 1024
"""The rows of hidden states that go through an MLP at once."""

MixerRows = Callable[[Layer, Any, Floats, Sequence[Stretch]], Floats]
"""Returns what a mixer of a layer makes of the rows [rows, d] of several sequences."""

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
        own = FileMatrices(file)
        self._reader = LayerReader(file, matrices or own, self._model, context, resident_layers)
        self.facts = self._model.facts
        self.attention = AttentionRows(self._model, context)
        self._mixers: Mapping[type[MixerFacts], MixerRows] = {
            AttentionFacts: self.attention.rows,
            LatentFacts: latent_attention,
            ShortConvFacts: short_convolution,
            SSDFacts: mamba2,
            DeltaFacts: delta_net,
        }

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
            for stretch, its_changes in zip(stretches, by_sequence(changes, stretches), strict=True):
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
            outputs.append(self._mixers[type(mixer)](layer, mixer, taken, stretches))
        return self._add_mixed(layer, x, sum(outputs[1:], outputs[0]))

    # The methods below take rows [rows, d], or one row [d].

    def _attention_input(self, layer: Layer, x: Floats) -> Floats:
        norm = layer.roles.attention
        return x if norm is None else layer.norms[norm](x)

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
