"""The reference's attention.

Methods take rows [rows, d] at positions [rows, 1, 1], or one row [d] at one position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import HeadNorm, WeightlessNorm
from anespec.convert.mixers.attention.facts import (
    ATTENTION_OUTPUT,
    K_NORM,
    OUTPUT_GATE,
    Q_NORM,
    AttentionFacts,
    K,
    Q,
    V,
)
from anespec.convert.source.facts import ModelFacts
from anespec.convert.source.model import SourceModel
from anespec.validate.golden.reference_layers import Layer
from anespec.validate.golden.reference_parts import (
    LayerCache,
    Stretch,
    attended_values,
    by_sequence,
    cache_key,
    rms_norm,
    rotated,
)
from anespec.validate.golden.rounding import Floats

Positions = NDArray[np.float64]
"""The positions of rows, [rows, 1, 1]; or of one row, without axes."""


@dataclass(frozen=True)
class AttentionRows:
    """The attention of a model's layers. `context` is the artifact's."""

    model: SourceModel
    context: int

    @property
    def facts(self) -> ModelFacts:
        """The model's facts."""
        return self.model.facts

    def rows(
        self, layer: Layer, facts: AttentionFacts, taken: Floats, stretches: Sequence[Stretch]
    ) -> Floats:
        """Return the attention of the rows [rows, d] of several sequences, each within its own sequence."""
        positions = np.concatenate([stretch.positions for stretch in stretches]).astype(np.float64)
        positions = positions[:, None, None]
        queries = by_sequence(self.queries(layer, facts, taken, positions), stretches)
        if facts.owns_kv:
            keys = by_sequence(self.keys(layer, facts, taken, positions), stretches)
            values = by_sequence(self.values(layer, facts, taken), stretches)
            for stretch, its_keys, its_values in zip(stretches, keys, values, strict=True):
                cache = stretch.caches[cache_key(facts)]
                assert isinstance(cache, LayerCache)
                cache.append(its_keys, its_values, stretch.positions)
        softcap = self.facts.attention_softcap
        mixed = [
            attended_values(facts, softcap, *pair, self.model.sinks(facts))
            for pair in zip(queries, stretches, strict=True)
        ]
        return self.attended(layer, taken, np.concatenate(mixed))

    def queries(self, layer: Layer, facts: AttentionFacts, x: Floats, position: Positions) -> Floats:
        """Return queries, rotated and scaled by the temperature of their position: [..., heads, head_dim]."""
        return self._heads(layer, facts, Q, x, position) * self._temperature(position)

    def keys(self, layer: Layer, facts: AttentionFacts, x: Floats, position: Positions) -> Floats:
        """Return keys, rotated: [..., n_kv, head_dim]."""
        return self._heads(layer, facts, K, x, position)

    def values(self, layer: Layer, facts: AttentionFacts, x: Floats) -> Floats:
        """Return values: [..., n_kv, head_dim]."""
        projected = self._clamped(layer.projections[V if V in layer.projections else K](x))
        value = projected.reshape(*x.shape[:-1], facts.kv_heads, facts.head_dim)
        if self.facts.family.value_norm is WeightlessNorm.EACH_HEAD:
            value = rms_norm(value, self.facts.epsilon)
        return value

    def attended(self, layer: Layer, taken: Floats, mixed: Floats) -> Floats:
        """Return attention's output; `mixed` are the outputs of the heads, concatenated.

        They are multiplied by the sigmoid of a projection of `taken` if there is one.
        """
        if OUTPUT_GATE in layer.projections:
            gate = layer.projections[OUTPUT_GATE](taken)
            if self.facts.family.gates_heads:
                gate = np.repeat(gate, mixed.shape[-1] // gate.shape[-1], axis=-1)
            mixed = np.asanyarray(mixed / (1 + np.exp(-gate)), np.float32)
        return layer.projections[ATTENTION_OUTPUT](mixed)

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

    def _clamped(self, x: Floats) -> Floats:
        clamp = self.facts.attention_clamp
        return x if clamp is None else np.clip(x, -clamp, clamp)

    def _temperature(self, position: Positions) -> Floats:
        temperature = self.model.temperature(self.context)
        if temperature is None:
            return np.ones((), np.float32)
        growth = 1 + temperature.scale * np.log1p(position // temperature.step)
        return np.asanyarray(growth, np.float32)
