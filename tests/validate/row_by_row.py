"""The reference, one row at a time: the oracle for computing all rows of a layer together.

Each row goes through a layer alone, as vectors, before the next begins. The rows that it attends to are
picked one by one out of a list of earlier ones; nothing is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anespec.convert.mixers.short_conv.facts import CONV_IN, CONV_OUT
from anespec.convert.source.facts import AttentionFacts, LatentFacts, RecurrentFacts, ShortConvFacts
from anespec.validate.golden.closeness import Floats
from anespec.validate.golden.reference import Layer, Reference
from anespec.validate.golden.reference_parts import Caches, Doubts, Stretch, softcapped


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
    caches = reference.caches()
    rows = []
    for token, position in zip(ids, positions, strict=True):
        row, own = reference.embed([token], [position])[0], reference._per_layer_inputs([token])
        for facts in layers:
            layer = reference._reader.layer(facts.index)
            before = row
            taken, mixed = reference._attention_input(layer, row), np.zeros_like(row)
            for mixer in facts.mixers:
                if isinstance(mixer, RecurrentFacts):
                    mixed = mixed + recurrence(reference, layer, mixer, taken, position, caches)
                    continue
                if isinstance(mixer, LatentFacts):
                    mixed = mixed + latents(layer, mixer, taken, position, past[mixer.kv_layer])
                    continue
                mix = convolution if isinstance(mixer, ShortConvFacts) else attention
                mixed = mixed + mix(reference, layer, mixer, taken, position, past[mixer.kv_layer])
            row = reference._add_mixed(layer, row, mixed) if facts.mixers else row
            given = None if own is None else own[0, facts.index]
            row = reference._after_mixers(layer, row, before, given)
        rows.append(row)
    return np.stack(rows)


def attention(
    reference: Reference, layer: Layer, facts: AttentionFacts, taken: Floats, position: int, past: PastRows
) -> Floats:
    """Attention of one row [d], which joins `past` where the layer has keys and values of its own."""
    place = np.array(position, np.float64)
    queries = reference.attention.queries(layer, facts, taken, place)
    if facts.owns_kv:
        past.keys.append(reference.attention.keys(layer, facts, taken, place))
        past.values.append(reference.attention.values(layer, facts, taken))
        past.positions.append(position)
    seen, mixed = past.visible(position, facts.window), []
    sinks = reference._model.sinks(facts)
    for head, query in enumerate(queries):
        source = head // (facts.heads // facts.kv_heads)
        scores = np.stack([past.keys[row][source] @ query for row in seen]) * np.float32(facts.scale)
        weights = np.exp(softcapped(scores, reference.facts.attention_softcap))
        beside = 0.0 if sinks is None else np.exp(sinks[head])
        mixed.append(
            sum((w * past.values[row][source] for w, row in zip(weights, seen, strict=True)), 0 * query)
            / (weights.sum() + beside)
        )
    return reference.attention.attended(layer, taken, np.concatenate(mixed))


def latents(layer: Layer, facts: LatentFacts, taken: Floats, position: int, past: PastRows) -> Floats:
    """Latent attention of one row [d], whose latent joins `past` as a value and its rotated key as a key.

    Each head makes the keys and values of all rows anew, by its own matrices.
    """

    def norm(role: str, row: Floats) -> Floats:
        return layer.norms[role](row)

    def rotated(pairs: Floats) -> Floats:
        angles = position * layer.frequencies
        turn = layer.magnitude * np.exp(1j * angles)
        turned = (pairs[0::2] + 1j * pairs[1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=1).reshape(-1).astype(np.float32)

    project = layer.projections
    if facts.query_latent is None:
        queries = project["attn_q"](taken)
    else:
        queries = project["attn_q_b"](norm("attn_q_a_norm", project["attn_q_a"](taken)))
    kept = project["attn_kv_a_mqa"](taken)
    past.values.append(norm("attn_kv_a_norm", kept[: facts.latent]))
    past.keys.append(rotated(kept[facts.latent :]))
    past.positions.append(position)
    seen, mixed = past.visible(position, None), []
    for head, query in enumerate(queries.reshape(facts.heads, -1)):
        plain, rotary = query[: facts.plain], rotated(query[facts.plain :])
        key, value = (project[f"attn_{which}_b.{head}"].weight for which in "kv")
        scores = [plain @ (past.values[row] @ key) + rotary @ past.keys[row] for row in seen]
        weights = np.exp(np.array(scores, np.float32) * np.float32(facts.scale))
        parts = (w * (value @ past.values[row]) for w, row in zip(weights, seen, strict=True))
        mixed.append(sum(parts, np.zeros(facts.value_dim, np.float32)) / weights.sum())
    return project["attn_output"](np.concatenate(mixed))


def convolution(
    reference: Reference, layer: Layer, facts: ShortConvFacts, taken: Floats, position: int, past: PastRows
) -> Floats:
    """The gated convolution of one row [d], whose inputs join `past` as keys."""
    before, after, own = np.split(layer.projections[CONV_IN](taken), 3)
    past.keys.append(before * own)
    past.positions.append(position)
    assert layer.kernel is not None
    taps = {
        facts.taps - 1 - (position - past.positions[row]): row for row in past.visible(position, facts.taps)
    }
    mixed = sum((past.keys[row] * layer.kernel[:, tap] for tap, row in taps.items()), 0 * own)
    return layer.projections[CONV_OUT](after * mixed)


def recurrence(
    reference: Reference, layer: Layer, facts: RecurrentFacts, taken: Floats, position: int, caches: Caches
) -> Floats:
    """A recurrent mixer of one row [d], whose cache moves on by this row."""
    alone = Stretch(np.array([position]), caches, None, Doubts.none(1))
    return reference._mixers[type(facts)](layer, facts, taken[None], [alone])[0]


def row_logits(reference: Reference, hidden: Floats) -> Floats:
    """Logits of each row by itself."""
    return np.concatenate([reference.logits(row[None]) for row in hidden])
