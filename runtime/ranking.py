"""Rows of fp16 logits by rank, without looking at every token more often than needed.

A vocabulary has 200,000 tokens, and a pass may sample from four rows within a millisecond. So a row is kept
as 16-bit integers that order like its logits, which numpy compares many times faster than fp16 numbers; the
likeliest tokens are found by the largest of every 16; and exponentials of all tokens, where they are wanted
at all, are looked up in a table of all fp16 numbers, made in float64, so that machines agree on them.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import Logits

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
TokenIds = NDArray[np.int64]
Keys = NDArray[np.int16]

HEAD = 256
WIDER = 16
"""How many times as many candidates are looked at where those so far are too few."""

_GROUP = 16
_SUM_BLOCK = 64
_ABSENT = -32768
_INFINITE = 0x7C00
# Weights of float32 reach from e^-87 to e^88; the largest of a row is between e^-16 and e^16.
_ANCHOR_STEP = 32.0
_REACH = 87.0
# Below every logit, but a number to calculate with.
_LEAST = -1e6
# Of a mass of 1 or more; as much as sums of float32 are off.
_NEGLIGIBLE = 1e-6
# For what sums of float32 are off.
_MARGIN = 1.0001


def _values_by_key() -> Float64:
    """The number that each key stands for, by the key's 16 bits; infinities for those of no number."""
    keys = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    magnitudes = np.abs(keys.astype(np.int32)).clip(0, _INFINITE).astype(np.uint16).view(np.float16)
    values = np.copysign(magnitudes.astype(np.float64), keys)
    values.flags.writeable = False
    return values


_VALUES = _values_by_key()
_FINITE_VALUES = np.where(np.isfinite(_VALUES), _VALUES, _LEAST).astype(np.float32)


@lru_cache(maxsize=32)
def _weight_table(temperature: float, anchor: float) -> Float32:
    """exp((value - anchor) / temperature) by key, float32 [65536]; 0 for what is too far below to count."""
    table = np.zeros(1 << 16, dtype=np.float32)
    near = np.flatnonzero(np.abs(_VALUES - anchor) < _REACH * temperature)
    table[near] = np.exp((_VALUES[near] - anchor) / temperature)
    table.flags.writeable = False
    return table


@dataclass(frozen=True)
class Candidates:
    """Tokens by falling logit, the lower id first among equals: ids [n] and float64 logits [n]."""

    ids: TokenIds
    logits: Float64

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> "Candidates":
        """The `count` likeliest."""
        return Candidates(self.ids[:count], self.logits[:count])

    def take(self, places: TokenIds) -> "Candidates":
        """Those at some places."""
        places = np.sort(places)
        return Candidates(self.ids[places], self.logits[places])


@dataclass(frozen=True)
class Rest:
    """All tokens of a row but some candidates, at one temperature.

    `weights` [_SUM_BLOCK, n] are proportional to their probabilities, token i being at i // n and i % n;
    `sums` [n] those of its columns; `mass` their sum, on a scale where the row's largest logit weighs 1.
    """

    weights: Float32
    sums: Float64
    mass: float

    def pick(self, share: float) -> int:
        """The token where the running sum, column by column, first exceeds `share` of the mass."""
        column = reach(self.sums, share)
        before = float(self.sums[:column].sum())
        inside = (share * float(self.sums.sum()) - before) / float(self.sums[column])
        row = reach(self.weights[:, column].astype(np.float64), min(max(inside, 0.0), 1.0))
        return row * int(self.weights.shape[1]) + column


def reach(weights: Float64, share: float) -> int:
    """The first index where the running sum of weights exceeds `share` of its end; never that of a zero."""
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, share * sums[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


class LogitRow:
    """One row of logits [vocabulary]: fp16 as computed, but for a few tokens that were changed or are absent.

    -infinity is absent. Buffers of the vocabulary's size are kept in `pages` from row to row:
    getting fresh memory for them costs as much as the arithmetic.
    """

    def __init__(self, logits: Logits, pages: "Pages") -> None:
        self._pages = pages
        self._keys = pages.keys
        self._changed = Candidates(np.empty(0, np.int64), np.empty(0))
        self._size = len(logits)
        _read_keys(logits, self._keys[: self._size], pages.signs[: self._size])

    @cached_property
    def _groups(self) -> Keys:
        """The largest key of each group; group g has the tokens g, g + n, g + 2 n ... of n groups."""
        maxima: Keys = self._keys.reshape(_GROUP, -1).max(axis=0)
        return maxima

    @cached_property
    def _group_indices(self) -> NDArray[np.intp]:
        return self._groups.view(np.uint16).astype(np.intp)

    @cached_property
    def highest(self) -> float:
        """The largest logit; infinity or -infinity where it is not a finite number."""
        key = int(self._groups.max())
        return max(float(_VALUES[key & 0xFFFF]), float(self._changed.logits.max(initial=-np.inf)))

    def change(self, ids: TokenIds, logits: Float64) -> None:
        """Give tokens, each at most once, other logits. Call it at most once, before anything is asked."""
        self._keys[ids] = _ABSENT
        present = logits > -np.inf
        ids, logits = ids[present], logits[present]
        order = np.lexsort((ids, -logits))
        self._changed = Candidates(ids[order], logits[order])

    def only(self, allowed: NDArray[np.bool_]) -> None:
        """Leave out the tokens that are not `allowed` [vocabulary]. Call it before anything is asked."""
        np.copyto(self._keys[: self._size], np.int16(_ABSENT), where=~allowed)
        kept = allowed[self._changed.ids]
        self._changed = Candidates(self._changed.ids[kept], self._changed.logits[kept])

    def values(self, ids: TokenIds) -> Float64:
        """The logits of tokens that were not changed; -infinity for absent ones."""
        values: Float64 = _VALUES[self._keys[ids].view(np.uint16)]
        return values

    def largest(self, count: int) -> Candidates:
        """The `count` largest, or as many as there are."""
        found = self._largest_unchanged(min(count, self._size))
        changed = self._changed
        if not len(changed):
            return found
        if len(found) >= count:
            changed = changed.first(int(np.searchsorted(-changed.logits, -found.logits[-1], side="right")))
        ids = np.concatenate((found.ids, changed.ids))
        logits = np.concatenate((found.logits, changed.logits))
        order = np.lexsort((ids, -logits))[:count]
        return Candidates(ids[order], logits[order])

    @cached_property
    def head(self) -> Candidates:
        """The largest few hundred, among which a token is found without looking at the rest, mostly."""
        return self.largest(HEAD)

    @cached_property
    def log_mass(self) -> float:
        """The logarithm of the sum of the exponentials of all logits, to about 1e-6."""
        mass = float(np.exp(self.head.logits - self.highest).sum())
        if self.bound_mass(self.head, 1.0) > _NEGLIGIBLE:
            mass += self.rest(self.head, 1.0).mass
        return self.highest + math.log(mass)

    def at_least(self, limit: float) -> Candidates:
        """All tokens whose logit is `limit` or more."""
        found = self.head
        while found.logits[-1] >= limit:
            wider = self.largest(len(found) * WIDER)
            if len(wider) == len(found):
                break
            found = wider
        return found.first(int(np.searchsorted(-found.logits, -limit, side="right")))

    def _largest_unchanged(self, count: int) -> Candidates:
        keys = self._keys
        groups = self._groups
        if count <= len(groups) // 8:
            # The count-th largest of the groups' maxima is no larger than the count-th largest key.
            limit = np.partition(groups, len(groups) - count)[len(groups) - count]
            columns = np.flatnonzero(groups >= limit)
            near = keys.reshape(_GROUP, -1)[:, columns]
            rows, places = np.nonzero(near >= max(limit, _ABSENT + 1))
            ids = rows * len(groups) + columns[places]
        elif count < self._size:
            limit = np.partition(keys, len(keys) - count)[len(keys) - count]
            ids = np.flatnonzero(keys >= max(limit, _ABSENT + 1))
        else:
            ids = np.flatnonzero(keys > _ABSENT)
        falling = np.bitwise_not(keys[ids])
        ids = ids[np.argsort(falling, kind="stable")[:count]]
        logits = self.values(ids)
        present = int(np.count_nonzero(logits > -np.inf))
        return Candidates(ids[:present], logits[:present])

    def bound_mass(self, above: Candidates, temperature: float) -> float:
        """What the mass of all tokens but those `above`, the largest, is at most; the largest logit weighs 1.

        Every token is taken to be as likely as the largest of its group that is not above.
        """
        table, scale = self._table(temperature)
        limit = math.exp((float(above.logits[-1]) - self.highest) / temperature)
        weights = np.minimum(table.take(self._group_indices), np.float32(limit / scale))
        changed = np.minimum(np.exp((self._changed.logits - self.highest) / temperature), limit)
        return _GROUP * float(weights.sum()) * scale * _MARGIN + float(changed.sum())

    def bound_moment(self, above: Candidates) -> float:
        """What the rest's moment is at most: the sum of mass times drop, at temperature 1.

        A token's drop is how far its logit is below the largest.
        """
        groups = _FINITE_VALUES.take(self._group_indices).astype(np.float64)
        limit = self.highest - float(above.logits[-1])
        return _GROUP * _moment(self.highest - groups, limit) + _moment(
            self.highest - self._changed.logits, limit
        )

    def rest(self, above: Candidates, temperature: float) -> Rest:
        """All tokens but those `above`, the largest; its arrays are overwritten by the next call."""
        table, scale = self._table(temperature)
        pages = self._pages
        np.copyto(pages.indices, self._keys.view(np.uint16))
        table.take(pages.indices, out=pages.weights, mode="wrap")
        changed = self._changed
        pages.weights[changed.ids] = np.exp((changed.logits - self.highest) / temperature) / scale
        pages.weights[above.ids] = 0
        weights = pages.weights.reshape(_SUM_BLOCK, -1)
        sums = weights.sum(axis=0).astype(np.float64)
        return Rest(weights, sums, float(sums.sum()) * scale)

    def rest_moment(self, above: Candidates) -> tuple[float, float]:
        """The mass that `bound_rest` bounds at temperature 1, and the moment."""
        rest = self.rest(above, 1.0)
        values = _FINITE_VALUES.take(self._pages.indices, mode="wrap")
        values[self._changed.ids] = self._changed.logits
        values *= self._pages.weights
        total = float(values.reshape(_SUM_BLOCK, -1).sum(axis=0).astype(np.float64).sum())
        scale = self._table(1.0)[1]
        return rest.mass, max(0.0, self.highest * rest.mass - total * scale)

    def _table(self, temperature: float) -> tuple[Float32, float]:
        """Weights by key, and what to multiply them with so that the largest logit weighs 1."""
        anchor = round(self.highest / (_ANCHOR_STEP * temperature)) * _ANCHOR_STEP * temperature
        return _weight_table(temperature, anchor), float(np.exp((anchor - self.highest) / temperature))


class Pages:
    """Memory for one row at a time of a vocabulary, reused from row to row."""

    def __init__(self, vocabulary: int) -> None:
        self.keys = np.full(-(-vocabulary // _SUM_BLOCK) * _SUM_BLOCK, _ABSENT, dtype=np.int16)
        self.signs = np.empty(vocabulary, dtype=np.int16)

    @cached_property
    def indices(self) -> NDArray[np.intp]:
        """One per key; taking by anything else is copied to this type first."""
        return np.empty(len(self.keys), dtype=np.intp)

    @cached_property
    def weights(self) -> Float32:
        """One per key."""
        return np.empty(len(self.keys), dtype=np.float32)


def _read_keys(logits: Logits, keys: Keys, signs: Keys) -> None:
    """The keys of logits: the magnitude's bits with the number's sign, so that 0 and -0 are equal."""
    bits = logits.view(np.int16)
    np.right_shift(bits, 15, out=signs)
    np.bitwise_and(bits, 0x7FFF, out=keys)
    np.bitwise_xor(keys, signs, out=keys)
    np.subtract(keys, signs, out=keys)


def _moment(drops: Float64, least: float) -> float:
    """The most that the sum of x e^-x is for x of `drops` and of `least` or more; it falls from x = 1 on."""
    falling = np.maximum(drops, max(least, 1.0))
    return float((falling * np.exp(-falling)).sum())
