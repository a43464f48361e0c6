"""The reference's attention: the rows of one sequence attend only to each other."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import Activation
from anespec.convert.source.facts import LayerFacts
from anespec.validate.golden.closeness import Floats

# Functions of float32 arrays of any shape that numpy lacks. The caller handles overflows (np.errstate).


def rms_norm(x: Floats, epsilon: float) -> Floats:
    """Return `x` divided by the root mean square of its last axis."""
    normed: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    return normed


def softcapped(x: Floats, cap: float | None) -> Floats:
    """Return scores or logits softly bounded by `cap`, or unchanged without one."""
    if cap is None:
        return x
    bounded = x / np.float32(cap)
    np.tanh(bounded, out=bounded)
    bounded *= cap
    return bounded


def softmax(scores: Floats) -> Floats:
    """Return the softmax over the last axis, computed in place.

    Every row needs a score that is not -inf.
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def activated(x: Floats, activation: Activation) -> Floats:
    """Return SiLU, or GELU by its tanh approximation."""
    match activation:
        case Activation.SILU:
            # If the exponential overflows, the result is zero, as it should be.
            divisor = np.exp(-x)
            divisor += 1
            return np.divide(x, divisor, out=divisor)
        case Activation.GELU:
            inner = x * x
            inner *= 0.044715
            inner += 1
            inner *= x
            inner *= math.sqrt(2 / math.pi)
            np.tanh(inner, out=inner)
            inner += 1
            inner *= x
            inner *= 0.5
            return inner


QUERIES_AT_ONCE = 128
"""The rows of one sequence whose attention scores are held at once, for all heads."""

Positions = NDArray[np.int64]


class LayerCache:
    """Keys (after rope) and values of one layer for one sequence's rows so far: [n_kv, rows, head_dim]."""

    def __init__(self, layer: LayerFacts) -> None:
        self.keys: Floats = np.zeros((layer.kv_heads, 0, layer.head_dim), np.float32)
        self.values: Floats = np.zeros((layer.kv_heads, 0, layer.head_dim), np.float32)
        self.positions: Positions = np.zeros(0, np.int64)

    def append(self, keys: Floats, values: Floats, positions: Positions) -> None:
        """Add rows: `keys` and `values` are [rows, n_kv, head_dim]."""
        self.keys = np.concatenate((self.keys, keys.swapaxes(0, 1)), axis=1)
        self.values = np.concatenate((self.values, values.swapaxes(0, 1)), axis=1)
        self.positions = np.concatenate((self.positions, positions))

    def visible(self, positions: Positions, window: int | None) -> NDArray[np.bool_]:
        """Return whether the rows at `positions` (first axis) attend to the cached rows (second axis)."""
        distance = positions[:, None] - self.positions
        seen: NDArray[np.bool_] = distance >= 0
        return seen if window is None else seen & (distance < window)


Caches = dict[int, LayerCache]
"""The caches, by the layer that owns the keys and values."""


@dataclass(frozen=True)
class Stretch:
    """Rows of one sequence at `positions`, int64 [rows], with the caches of its earlier rows.

    The caches grow. `own` are the rows of the layers' own embeddings, [rows, layers, width].
    """

    positions: Positions
    caches: Caches
    own: Floats | None


def attended_values(facts: LayerFacts, softcap: float | None, queries: Floats, stretch: Stretch) -> Floats:
    """Return the attention of one sequence's queries [rows, heads, head_dim]: [rows, heads * head_dim].

    Consecutive query heads share a K/V head. The scores are bounded by `softcap`.
    """
    cache, rows = stretch.caches[facts.kv_layer], len(queries)
    mixed: Floats = np.empty((rows, facts.heads * facts.head_dim), np.float32)
    for first in range(0, rows, QUERIES_AT_ONCE):
        some = slice(first, first + QUERIES_AT_ONCE)
        # [rows, n_kv, heads of each, head_dim] -> [n_kv, heads of each, rows, head_dim]
        shape = (-1, facts.kv_heads, facts.heads // facts.kv_heads, facts.head_dim)
        grouped = queries[some].reshape(shape).transpose(1, 2, 0, 3)
        heads = grouped.shape
        seen = cache.visible(stretch.positions[some], facts.window)
        # Leave out keys that none of these rows sees, such as all keys after them.
        any_sees = np.flatnonzero(seen.any(axis=0))
        reach = slice(int(any_sees[0]), int(any_sees[-1]) + 1)
        scores = grouped.reshape(facts.kv_heads, -1, facts.head_dim) @ cache.keys[:, reach].swapaxes(1, 2)
        scores *= facts.scale
        scores = softcapped(scores, softcap).reshape(*heads[:3], -1)
        np.copyto(scores, -np.inf, where=~seen[:, reach])
        weights = softmax(scores).reshape(facts.kv_heads, -1, reach.stop - reach.start)
        mixed[some] = (
            (weights @ cache.values[:, reach]).reshape(heads).transpose(2, 0, 1, 3).reshape(heads[2], -1)
        )
    return mixed
