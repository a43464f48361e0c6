"""The reference, one row at a time: the oracle for computing all rows of a layer together.

Each row goes through a layer alone, as vectors, before the next begins. The rows that it attends to are
picked one by one out of a list of earlier ones; nothing is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anespec.convert.source.facts import LayerFacts
from anespec.validate.golden.closeness import Floats
from anespec.validate.golden.reference import Layer, Reference
from anespec.validate.golden.reference_attention import softcapped


@dataclass
class PastRows:
    """Keys and values of one layer, [n_kv, head_dim] for each row so far, and where the rows stand."""

    keys: list[Floats] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def visible(self, position: int, window: int | None) -> list[int]:
        """The rows that a row at `position` attends to."""
        oldest = 0 if window is None else position - window + 1
        return [row for row, place in enumerate(self.positions) if oldest <= place <= position]


def row_by_row(
    reference: Reference, ids: Sequence[int], positions: Sequence[int], end: int | None = None
) -> Floats:
    """What layers 0..end-1 make of one sequence's rows: float32 [rows, d]."""
    layers = reference.facts.layers[:end]
    past = {facts.index: PastRows() for facts in layers}
    rows = []
    for token, position in zip(ids, positions, strict=True):
        row, own = reference.embed([token])[0], reference._per_layer_inputs([token])
        for facts in layers:
            layer = reference._layer(facts.index)
            row = attention(reference, layer, facts, row, position, past[facts.kv_layer])
            row = reference._after_attention(layer, row, None if own is None else own[0, facts.index])
        rows.append(row)
    return np.stack(rows)


def attention(
    reference: Reference, layer: Layer, facts: LayerFacts, x: Floats, position: int, past: PastRows
) -> Floats:
    """Attention of one row [d], which joins `past` where the layer has keys and values of its own."""
    taken, place = reference._attention_input(layer, x), np.array(position, np.float64)
    queries = reference._queries(layer, facts, taken, place)
    if facts.owns_kv:
        past.keys.append(reference._keys(layer, facts, taken, place))
        past.values.append(reference._values(layer, facts, taken))
        past.positions.append(position)
    seen, mixed = past.visible(position, facts.window), []
    for head, query in enumerate(queries):
        source = head // (facts.heads // facts.kv_heads)
        scores = np.stack([past.keys[row][source] @ query for row in seen]) * np.float32(facts.scale)
        weights = np.exp(softcapped(scores, reference.facts.attention_softcap))
        mixed.append(
            sum((w * past.values[row][source] for w, row in zip(weights, seen, strict=True)), 0 * query)
            / weights.sum()
        )
    return reference._attended(layer, x, np.concatenate(mixed))


def row_logits(reference: Reference, hidden: Floats) -> Floats:
    """Logits of each row by itself."""
    return np.concatenate([reference.logits(row[None]) for row in hidden])
