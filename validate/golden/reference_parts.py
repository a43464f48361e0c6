"""Parts of the reference's layers; mixers combine the rows of one sequence only with each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import XIELU, Activation, LayerActivation, RopeStyle
from anespec.convert.source.facts import (
    AttentionFacts,
    LatentFacts,
    MixerFacts,
    RecurrentFacts,
    ShortConvFacts,
)
from anespec.validate.golden.rounding import Floats, one_operation

DOUBT_GROWS = 10.0
"""The factor by which a doubt about a row's experts may grow in later layers."""

EXCHANGES = 4.0
"""The factor by which other choices may change a row more than the exchange of its last expert: other pairs
may be as close. Up to 1.2 was seen (gpt-oss)."""

# Functions of float32 arrays of any shape that numpy lacks. The caller handles overflows (np.errstate).


@one_operation
def rms_norm(x: Floats, epsilon: float) -> Floats:
    """Return `x` divided by the root mean square of its last axis."""
    normed: Floats = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    return normed


@dataclass(frozen=True)
class Projection:
    """A projection of rows, with its bias if the file has one."""

    weight: Floats
    bias: Floats | None

    def __call__(self, x: Floats) -> Floats:
        """Return the projection of rows [..., columns]."""
        product: Floats = x @ self.weight.T
        if self.bias is not None:
            product += self.bias
        return product


@dataclass(frozen=True)
class Norm:
    """A norm over hidden states, heads or embeddings of layers; its weight and bias may be absent."""

    epsilon: float
    weight: Floats | None
    bias: Floats | None = None
    subtracts_mean: bool = False

    def __call__(self, x: Floats) -> Floats:
        """Return the norm of the last axis."""
        if self.subtracts_mean:
            x = x - x.mean(axis=-1, keepdims=True)
        normed = rms_norm(x, self.epsilon)
        if self.weight is not None:
            normed = normed * self.weight
        return normed if self.bias is None else normed + self.bias


@one_operation
def softcapped(x: Floats, cap: float | None) -> Floats:
    """Return scores or logits softly bounded by `cap`, or unchanged without one."""
    if cap is None:
        return x
    bounded = x / np.float32(cap)
    np.tanh(bounded, out=bounded)
    bounded *= cap
    return bounded


@one_operation
def softmax(scores: Floats) -> Floats:
    """Return the softmax over the last axis, computed in place.

    Every row needs a score that is not -inf.
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


@one_operation
def activated(x: Floats, activation: LayerActivation) -> Floats:
    """Return the activation; GELU is the tanh approximation."""
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
        case Activation.RELU_SQUARED:
            return np.square(np.maximum(x, 0))
        case XIELU(square, exponential, linear):
            above = square * np.square(x)
            below = exponential * (np.expm1(np.minimum(x, 0)) - x)
            return np.asanyarray(np.where(x > 0, above, below) + linear * x, np.float32)
    raise AssertionError(f"{activation} has no factors")


def gated(gate: Floats, up: Floats, activation: LayerActivation) -> Floats:
    """Return the middle of a gated MLP from its two projections."""
    if activation is Activation.CLAMPED_SWIGLU:
        bounded = np.minimum(gate, 7)
        return np.asanyarray(bounded / (1 + np.exp(-1.702 * bounded)) * (np.clip(up, -7, 7) + 1), np.float32)
    return activated(gate, activation) * up


QUERIES_AT_ONCE = 128
"""The rows of one sequence whose attention scores are held at once, for all heads."""

Positions = NDArray[np.int64]


class LayerCache:
    """Keys (after rope) and values of one layer for one sequence's rows so far: [n_kv, rows, head_dim]."""

    def __init__(self, layer: AttentionFacts) -> None:
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


class HeadsCache:
    """Keys [rows, heads, key_dim] and values [rows, heads, value_dim] of one layer and sequence so far.

    For latent attention, whose keys are wider than its values.
    """

    def __init__(self, layer: LatentFacts) -> None:
        self.keys: Floats = np.zeros((0, layer.heads, layer.key_dim), np.float32)
        self.values: Floats = np.zeros((0, layer.heads, layer.value_dim), np.float32)
        self.positions: Positions = np.zeros(0, np.int64)

    def append(self, keys: Floats, values: Floats, positions: Positions) -> None:
        """Add rows."""
        self.keys = np.concatenate((self.keys, keys))
        self.values = np.concatenate((self.values, values))
        self.positions = np.concatenate((self.positions, positions))


class ConvCache:
    """The inputs of one layer's convolution for one sequence's rows so far, [channels] by position."""

    def __init__(self) -> None:
        self.inputs: dict[int, Floats] = {}


class RecurrentCache:
    """The inputs of one layer's convolution by position, and the state [heads, keys, values] so far."""

    def __init__(self, mixer: RecurrentFacts) -> None:
        self.inputs: dict[int, Floats] = {}
        width = mixer.inner // mixer.heads
        self.state: Floats = np.zeros((mixer.heads, mixer.carried // mixer.inner, width), np.float32)


CacheKey = tuple[int, bool]
"""A layer, and whether its mixer is recurrent: a layer may have attention and a recurrent mixer."""

Cache = LayerCache | HeadsCache | ConvCache | RecurrentCache

Caches = dict[CacheKey, Cache]
"""The caches, by the mixer that owns them."""


def cache_key(mixer: MixerFacts) -> CacheKey:
    """Return the key of the cache that a mixer reads."""
    return mixer.kv_layer, isinstance(mixer, RecurrentFacts)


def cache_of(mixer: MixerFacts) -> Cache:
    """Return an empty cache for what a mixer keeps."""
    if isinstance(mixer, LatentFacts):
        return HeadsCache(mixer)
    if isinstance(mixer, RecurrentFacts):
        return RecurrentCache(mixer)
    return ConvCache() if isinstance(mixer, ShortConvFacts) else LayerCache(mixer)


@dataclass
class Doubts:
    """By how much other choices of experts, which rounding may make, may change rows' hidden states, [rows].

    `latest` is about the layer that ran last, `earlier` about all layers before it.
    """

    latest: Floats
    earlier: Floats

    @classmethod
    def none(cls, rows: int) -> "Doubts":
        """Return no doubts about so many rows."""
        return cls(np.zeros(rows, np.float32), np.zeros(rows, np.float32))

    @property
    def total(self) -> Floats:
        """The doubts about all layers so far."""
        total: Floats = np.hypot(self.latest, self.earlier)
        return total

    def enter_layer(self) -> None:
        """Let doubts grow by what a further layer makes of them, and pass in part to later rows.

        A row gets the root mean square of the doubts up to it, since it attends to these rows.
        """
        mean = np.sqrt(np.cumsum(np.square(self.latest)) / np.arange(1, len(self.latest) + 1))
        self.earlier = np.hypot(self.earlier, DOUBT_GROWS * np.hypot(self.latest, mean))
        self.latest = np.zeros_like(self.earlier)

    def exchange(self, changes: Floats) -> None:
        """Note by how much the exchange of one expert would change each row of the layer."""
        self.latest = EXCHANGES * changes


@dataclass(frozen=True)
class Stretch:
    """Rows of one sequence at `positions`, int64 [rows], with the caches of its earlier rows.

    The caches grow, and so do the doubts. `own` are the rows of the layers' own embeddings, [rows, layers,
    width].
    """

    positions: Positions
    caches: Caches
    own: Floats | None
    doubts: Doubts

    def afresh(self, caches: Caches) -> "Stretch":
        """Return the same rows without earlier ones and without doubts."""
        return replace(self, caches=caches, doubts=Doubts.none(len(self.positions)))


def attended_values(
    facts: AttentionFacts,
    softcap: float | None,
    queries: Floats,
    stretch: Stretch,
    sinks: Floats | None = None,
) -> Floats:
    """Return the attention of one sequence's queries [rows, heads, head_dim]: [rows, heads * head_dim].

    Consecutive query heads share a K/V head. The scores are bounded by `softcap`. `sinks` [heads] are scores
    of keys without values.
    """
    cache, rows = stretch.caches[cache_key(facts)], len(queries)
    assert isinstance(cache, LayerCache)
    mixed: list[Floats] = []
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
        if sinks is not None:
            more = np.broadcast_to(sinks.reshape(*heads[:2], 1, 1), (*heads[:3], 1))
            scores = np.concatenate((scores, more), axis=-1)
        weights = softmax(scores)[..., : reach.stop - reach.start].reshape(
            facts.kv_heads, -1, reach.stop - reach.start
        )
        values = (weights @ cache.values[:, reach]).reshape(heads)
        mixed.append(values.transpose(2, 0, 1, 3).reshape(heads[2], -1))
    return np.concatenate(mixed)


def rotated(
    heads: Floats,
    position: NDArray[np.float64],
    frequencies: NDArray[np.float64],
    magnitude: float,
    style: RopeStyle,
) -> Floats:
    """Rotate each pair of the rotary part by position * its frequency; [..., heads, head_dim]."""
    angles = position * frequencies
    cos = (np.cos(angles) * magnitude).astype(np.float32)
    sin = (np.sin(angles) * magnitude).astype(np.float32)
    half = len(frequencies)
    turned: Floats = heads.copy()
    pairs = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    if style is not RopeStyle.GPTJ:
        pairs = slice(0, half), slice(half, 2 * half)
    first, second = (heads[..., some] for some in pairs)
    turned[..., pairs[0]] = first * cos - second * sin
    turned[..., pairs[1]] = first * sin + second * cos
    return turned


def by_sequence(rows: Floats, stretches: Sequence[Stretch]) -> list[Floats]:
    """Split the rows of several sequences, which are concatenated."""
    return split_rows(rows, [len(stretch.positions) for stretch in stretches])


def split_rows(rows: Floats, counts: Sequence[int]) -> list[Floats]:
    """Split rows into consecutive parts of these counts."""
    return np.split(rows, np.cumsum(counts)[:-1])
