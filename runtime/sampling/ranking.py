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

# 16-bit integers that order like fp16 logits, and what is looked up by them.
#
# A logit's key is its magnitude's bits with its sign, so that 0 and -0 have the same. Tables have an entry
# per key, at its 16 bits as an unsigned number.

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Keys = NDArray[np.int16]

ABSENT = -32768
"""The key of no number."""

SUM_BLOCK = 64
"""There is room for a multiple of so many keys, so that they can be summed up in so many rows."""

_INFINITE = 0x7C00
# Weights of float32 reach from e^-87 to e^88; the largest of a row is between e^-16 and e^16.
_ANCHOR_STEP = 32.0
_REACH = 87.0
# Below every logit, but a number to calculate with.
_LEAST = -1e6


def _values_by_key() -> Float64:
    """The number that each key stands for, by the key's 16 bits; infinities for those of no number."""
    keys = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    magnitudes = np.abs(keys.astype(np.int32)).clip(0, _INFINITE).astype(np.uint16).view(np.float16)
    values = np.copysign(magnitudes.astype(np.float64), keys)
    values.flags.writeable = False
    return values


VALUES = _values_by_key()
"""The logit of every key, float64."""

FINITE_VALUES = np.where(np.isfinite(VALUES), VALUES, _LEAST).astype(np.float32)
"""The same, with a number far below all others for those of none."""

FALLING = np.arange(_INFINITE - 1, -_INFINITE, -1).astype(np.int16)
"""The keys of all finite numbers."""


def falling(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entries of a table by key for the keys of FALLING: two slices cost a quarter of looking them up."""
    return np.concatenate((table[_INFINITE - 1 :: -1], table[: (1 << 16) - _INFINITE : -1]))


@lru_cache(maxsize=32)
def _weight_table(temperature: float, anchor: float) -> Float32:
    """exp((value - anchor) / temperature) by key, float32 [65536]; 0 for what is too far below to count."""
    table = np.zeros(1 << 16, dtype=np.float32)
    near = np.flatnonzero(np.abs(VALUES - anchor) < _REACH * temperature)
    table[near] = np.exp((VALUES[near] - anchor) / temperature)
    table.flags.writeable = False
    return table


def weight_table(temperature: float, highest: float) -> tuple[Float32, float]:
    """exp(logit / temperature) by key on some scale, and what to multiply with so that `highest` weighs 1."""
    anchor = round(highest / (_ANCHOR_STEP * temperature)) * _ANCHOR_STEP * temperature
    return _weight_table(temperature, anchor), float(np.exp((anchor - highest) / temperature))


class Pages:
    """Memory for one row at a time of a vocabulary, reused from row to row."""

    def __init__(self, vocabulary: int) -> None:
        self.keys = np.full(-(-vocabulary // SUM_BLOCK) * SUM_BLOCK, ABSENT, dtype=np.int16)
        self.signs = np.empty(vocabulary, dtype=np.int16)

    @cached_property
    def indices(self) -> NDArray[np.intp]:
        """One per key; taking by anything else is copied to this type first."""
        return np.empty(len(self.keys), dtype=np.intp)

    @cached_property
    def weights(self) -> Float32:
        """One per key."""
        return np.empty(len(self.keys), dtype=np.float32)


def read_keys(logits: Logits, keys: Keys, signs: Keys) -> None:
    """The keys of logits, written to `keys`; `signs` is room to work in."""
    bits = logits.view(np.int16)
    np.right_shift(bits, 15, out=signs)
    np.bitwise_and(bits, 0x7FFF, out=keys)
    np.bitwise_xor(keys, signs, out=keys)
    np.subtract(keys, signs, out=keys)


TokenIds = NDArray[np.int64]

HEAD = 256
_GROUP = 16
# Of a mass of 1 or more; as much as sums of float32 are off.
_NEGLIGIBLE = 1e-6
# For what sums of float32 are off.
_MARGIN = 1.0001


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

    def merged(self, others: "Candidates") -> "Candidates":
        """Those of both; far quicker for a few `others` than sorting by two keys."""
        places = self._places(others)
        return Candidates(
            np.insert(self.ids, places, others.ids), np.insert(self.logits, places, others.logits)
        )

    def _places(self, others: "Candidates") -> TokenIds:
        """How many of these come before each of the others: by logit, and among equals by a binary search."""
        low = np.searchsorted(-self.logits, -others.logits, side="left")
        high = np.searchsorted(-self.logits, -others.logits, side="right")
        while (open_ := low < high).any():
            middle = (low + high) // 2
            before = np.zeros_like(open_)
            before[open_] = self.ids[middle[open_]] < others.ids[open_]
            low = np.where(before, middle + 1, low)
            high = np.where(open_ & ~before, middle, high)
        return low


@dataclass(frozen=True)
class Values:
    """The logits of a row, each value once [n], and how many tokens have it.

    Descending, except for those of changed tokens, which follow one by one; `keys` are those of the others.
    """

    logits: Float64
    counts: NDArray[np.int64]
    keys: Keys


@dataclass(frozen=True)
class Rest:
    """All tokens of a row but some candidates, at one temperature.

    `weights` [SUM_BLOCK, n] are proportional to their probabilities, token i being at i // n and i % n;
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
        read_keys(logits, self._keys[: self._size], pages.signs[: self._size])

    @cached_property
    def _indices(self) -> NDArray[np.intp]:
        """The keys' 16 bits. Taking by them "wrap"s, as numpy checks other indices at twice the cost."""
        indices = self._pages.indices
        np.copyto(indices, self._keys.view(np.uint16))
        return indices

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
        return max(float(VALUES[key & 0xFFFF]), float(self._changed.logits.max(initial=-np.inf)))

    def change(self, ids: TokenIds, logits: Float64) -> None:
        """Give tokens, each at most once, other logits. Call it at most once, before anything is asked."""
        self._keys[ids] = ABSENT
        present = logits > -np.inf
        ids, logits = ids[present], logits[present]
        order = np.lexsort((ids, -logits))
        self._changed = Candidates(ids[order], logits[order])

    def only(self, allowed: NDArray[np.bool_]) -> None:
        """Leave out the tokens that are not `allowed` [vocabulary]. Call it before anything is asked."""
        # The least of a key and either ABSENT or, as ABSENT less 1 wraps, the largest integer:
        # choosing by the mask takes ten times as long.
        most, keys = self._pages.signs, self._keys[: self._size]
        np.copyto(most, allowed)
        np.subtract(np.int16(ABSENT), most, out=most)
        np.minimum(keys, most, out=keys)
        kept = allowed[self._changed.ids]
        self._changed = Candidates(self._changed.ids[kept], self._changed.logits[kept])

    def values(self, ids: TokenIds) -> Float64:
        """The logits of tokens that were not changed; -infinity for absent ones."""
        values: Float64 = VALUES[self._keys[ids].view(np.uint16)]
        return values

    def largest(self, count: int) -> Candidates:
        """The `count` largest, or as many as there are."""
        if "head" in self.__dict__ and count <= HEAD:
            return self.head.first(count)
        found = self._largest_unchanged(min(count, self._size))
        changed = self._changed
        if not len(changed):
            return found
        if len(found) >= count:
            changed = changed.first(int(np.searchsorted(-changed.logits, -found.logits[-1], side="right")))
        return found.merged(changed).first(count)

    @cached_property
    def head(self) -> Candidates:
        """The largest few hundred, among which a token is found without looking at the rest, mostly."""
        return self.largest(HEAD)

    @cached_property
    def log_mass(self) -> float:
        """The logarithm of the sum of the exponentials of all logits, to about 1e-6."""
        weights = np.exp(self.head.logits - self.highest)
        mass = float(weights.sum())
        # Where the head's last token counts, those after it do, mostly: no bound need be found.
        if weights[-1] > _NEGLIGIBLE or self.bound_mass(self.head, 1.0) > _NEGLIGIBLE:
            mass += self.rest(self.head, 1.0).mass
        return self.highest + math.log(mass)

    def at_least(self, limit: float) -> Candidates:
        """All tokens whose logit is `limit` or more."""
        found = self.head
        while found.logits[-1] >= limit:
            wider = self.largest(len(found) * _GROUP)
            if len(wider) == len(found):
                break
            found = wider
        return found.first(int(np.searchsorted(-found.logits, -limit, side="right")))

    def by_value(self) -> Values:
        """All tokens together with those of the same logit."""
        counts = falling(np.bincount(self._indices, minlength=1 << 16))
        present = np.flatnonzero(counts != 0)
        keys = FALLING[present]
        logits = np.concatenate((VALUES[keys.view(np.uint16)], self._changed.logits))
        ones = np.ones(len(self._changed), dtype=np.int64)
        return Values(logits, np.concatenate((counts[present], ones)), keys)

    def keep(self, values: Values, places: TokenIds, last: int, count: int) -> None:
        """Leave out all tokens but those of the values at `places`, and the first `count` at place `last`.

        Between the keys of two values at `places` there is no value that is left out.
        """
        size = len(values.keys)
        kept = values.keys[places[places < size]]
        keys = self._keys[: self._size]
        allowed = keys >= kept.min(initial=np.iinfo(np.int16).max)
        allowed &= keys <= kept.max(initial=ABSENT)
        changed = places[places >= size] - size
        if last >= size:
            changed = np.append(changed, last - size)
        else:
            allowed[np.flatnonzero(keys == values.keys[last])[:count]] = True
        left = self._changed.take(changed)
        self.only(allowed)
        self._changed = left
        for found in ("_indices", "_groups", "_group_indices", "highest", "head"):
            self.__dict__.pop(found, None)

    def _largest_unchanged(self, count: int) -> Candidates:
        keys = self._keys
        groups = self._groups
        if count <= len(groups) // 8:
            # The count-th largest of the groups' maxima is no larger than the count-th largest key.
            limit = np.partition(groups, len(groups) - count)[len(groups) - count]
            columns = np.flatnonzero(groups >= limit)
            near = keys.reshape(_GROUP, -1).take(columns, axis=1)
            rows, places = np.divmod(np.flatnonzero(near >= max(limit, ABSENT + 1)), len(columns))
            ids = rows * len(groups) + columns[places]
        elif count < self._size:
            limit = np.partition(keys, len(keys) - count)[len(keys) - count]
            ids = np.flatnonzero(keys >= max(limit, ABSENT + 1))
        else:
            ids = np.flatnonzero(keys > ABSENT)
        falling = np.bitwise_not(keys[ids])
        ids = ids[np.argsort(falling, kind="stable")[:count]]
        logits = self.values(ids)
        present = int(np.count_nonzero(logits > -np.inf))
        return Candidates(ids[:present], logits[:present])

    def bound_mass(self, above: Candidates, temperature: float) -> float:
        """Return an upper bound of the mass of all tokens except those `above`, the largest; the largest
        logit weighs 1.

        Every token is counted as being as likely as the largest of its group that is not above.
        """
        table, scale = weight_table(temperature, self.highest)
        limit = math.exp((float(above.logits[-1]) - self.highest) / temperature)
        weights = np.minimum(table.take(self._group_indices, mode="wrap"), np.float32(limit / scale))
        changed = np.minimum(np.exp((self._changed.logits - self.highest) / temperature), limit)
        return _GROUP * float(weights.sum()) * scale * _MARGIN + float(changed.sum())

    def bound_moment(self, above: Candidates) -> float:
        """Return an upper bound of the rest's moment: the sum of mass times drop, at temperature 1.

        A token's drop is how far its logit is below the largest.
        """
        groups = FINITE_VALUES.take(self._group_indices, mode="wrap").astype(np.float64)
        limit = self.highest - float(above.logits[-1])
        return _GROUP * _moment(self.highest - groups, limit) + _moment(
            self.highest - self._changed.logits, limit
        )

    def rest(self, above: Candidates, temperature: float) -> Rest:
        """All tokens but those `above`, the largest; its arrays are overwritten by the next call."""
        table, scale = weight_table(temperature, self.highest)
        pages = self._pages
        table.take(self._indices, out=pages.weights, mode="wrap")
        changed = self._changed
        pages.weights[changed.ids] = np.exp((changed.logits - self.highest) / temperature) / scale
        pages.weights[above.ids] = 0
        weights = pages.weights.reshape(SUM_BLOCK, -1)
        sums = weights.sum(axis=0).astype(np.float64)
        return Rest(weights, sums, float(sums.sum()) * scale)


def _moment(drops: Float64, least: float) -> float:
    """The most that the sum of x e^-x is for x of `drops` and of `least` or more; it falls from x = 1 on."""
    falling = np.maximum(drops, max(least, 1.0))
    return float((falling * np.exp(-falling)).sum())
