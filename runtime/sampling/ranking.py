"""Rank the fp16 logits of a row without examining all tokens more often than needed.

A vocabulary has up to 200,000 tokens, and a pass may sample from four rows within a millisecond. So a row is
stored as 16-bit integers that are ordered like its logits: numpy compares these many times faster than fp16
numbers. The likeliest tokens are found through the maximum of every 16. Exponentials of all tokens are
computed only if needed, by a table of all fp16 numbers that is made in float64, so that all machines agree on
them.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import Logits

# A logit's key is a 16-bit integer with the bits of its magnitude and its sign, so that keys are ordered like
# logits, and 0 and -0 have the same key. Tables have one entry per key, at the key's bits as an unsigned
# number.

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Keys = NDArray[np.int16]

ABSENT_KEY = -32768
"""The key of an absent token, which no number has."""

SUM_BLOCK = 64
"""Arrays of keys have room for a multiple of this number, so that they can be summed as this number of
rows."""

_INFINITE = 0x7C00
# float32 weights range from e^-87 to e^88; the largest of a row is between e^-16 and e^16.
_ANCHOR_STEP = 32.0
_MAX_EXPONENT = 87.0
# A finite number below every logit.
_BELOW_ALL = -1e6


def _values_by_key() -> Float64:
    """Return the number of each key, by the key's 16 bits; infinities for keys without a number."""
    keys = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    magnitudes = np.abs(keys.astype(np.int32)).clip(0, _INFINITE).astype(np.uint16).view(np.float16)
    values = np.copysign(magnitudes.astype(np.float64), keys)
    values.flags.writeable = False
    return values


VALUES = _values_by_key()
"""The logit of every key, in float64."""

FINITE_VALUES = np.where(np.isfinite(VALUES), VALUES, _BELOW_ALL).astype(np.float32)
"""The logit of every key, and a number far below all logits for keys without a finite number."""

FALLING = np.arange(_INFINITE - 1, -_INFINITE, -1).astype(np.int16)
"""The keys of all finite numbers, descending."""


def falling(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entries of a table by key for the keys of FALLING.

    Two slices take a quarter of the time of indexing with the keys.
    """
    return np.concatenate((table[_INFINITE - 1 :: -1], table[: (1 << 16) - _INFINITE : -1]))


@lru_cache(maxsize=32)
def _weight_table(temperature: float, anchor: float) -> Float32:
    """Return exp((value - anchor) / temperature) by key, float32 [65536]; 0 beyond float32's range."""
    table = np.zeros(1 << 16, dtype=np.float32)
    near = np.flatnonzero(np.abs(VALUES - anchor) < _MAX_EXPONENT * temperature)
    table[near] = np.exp((VALUES[near] - anchor) / temperature)
    table.flags.writeable = False
    return table


def weight_table(temperature: float, highest: float) -> tuple[Float32, float]:
    """Return exp(logit / temperature) by key on some scale, and the factor that gives `highest` a weight of
    1."""
    anchor = round(highest / (_ANCHOR_STEP * temperature)) * _ANCHOR_STEP * temperature
    return _weight_table(temperature, anchor), float(np.exp((anchor - highest) / temperature))


class Pages:
    """Buffers of the vocabulary's size for one row at a time, reused for all rows."""

    def __init__(self, vocabulary: int) -> None:
        self.keys = np.full(-(-vocabulary // SUM_BLOCK) * SUM_BLOCK, ABSENT_KEY, dtype=np.int16)
        self.signs = np.empty(vocabulary, dtype=np.int16)

    @cached_property
    def indices(self) -> NDArray[np.intp]:
        """A buffer with one index per key. numpy would first copy indices of other types to this type."""
        return np.empty(len(self.keys), dtype=np.intp)

    @cached_property
    def weights(self) -> Float32:
        """A buffer with one weight per key."""
        return np.empty(len(self.keys), dtype=np.float32)


def read_keys(logits: Logits, keys: Keys, signs: Keys) -> None:
    """Write the keys of logits to `keys`; `signs` is a buffer that is overwritten."""
    bits = logits.view(np.int16)
    np.right_shift(bits, 15, out=signs)
    np.bitwise_and(bits, 0x7FFF, out=keys)
    np.bitwise_xor(keys, signs, out=keys)
    np.subtract(keys, signs, out=keys)


TokenIds = NDArray[np.int64]

HEAD = 256
"""The number of likeliest tokens that are examined first."""

_GROUP = 16
# A mass that does not matter beside a mass of 1 or more: about the error of float32 sums.
_NEGLIGIBLE = 1e-6
# A factor for bounds that covers the error of float32 sums.
_MARGIN = 1.0001


@dataclass(frozen=True)
class Candidates:
    """Tokens by descending logit, the lower id first among equals: ids [n] and float64 logits [n]."""

    ids: TokenIds
    logits: Float64

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, count: int) -> "Candidates":
        """Return the `count` likeliest candidates."""
        return Candidates(self.ids[:count], self.logits[:count])

    def take(self, places: TokenIds) -> "Candidates":
        """Return the candidates at these places."""
        places = np.sort(places)
        return Candidates(self.ids[places], self.logits[places])

    def merged(self, others: "Candidates") -> "Candidates":
        """Return the candidates of both; for a few `others` this is far faster than sorting by two keys."""
        places = self._places(others)
        return Candidates(
            np.insert(self.ids, places, others.ids), np.insert(self.logits, places, others.logits)
        )

    def _places(self, others: "Candidates") -> TokenIds:
        """Return the number of these candidates before each of the others; equal logits by a binary
        search."""
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
    """The distinct logits of a row [n], and the number of tokens with each.

    They descend; the logits of changed tokens follow, one entry for each token. `keys` are the keys of the
    former.
    """

    logits: Float64
    counts: NDArray[np.int64]
    keys: Keys


@dataclass(frozen=True)
class Rest:
    """All tokens of a row except some candidates, at one temperature.

    `weights` [SUM_BLOCK, n] are proportional to the tokens' probabilities; token i is in row i // n and
    column i % n. `sums` [n] are the sums of the columns. `mass` is the sum of all weights on a scale on which
    the row's largest logit has a weight of 1.
    """

    weights: Float32
    sums: Float64
    mass: float

    def pick(self, share: float) -> int:
        """Return the token at which the running sum, column by column, first exceeds `share` of the mass."""
        column = reach(self.sums, share)
        before = float(self.sums[:column].sum())
        inside = (share * float(self.sums.sum()) - before) / float(self.sums[column])
        row = reach(self.weights[:, column].astype(np.float64), min(max(inside, 0.0), 1.0))
        return row * int(self.weights.shape[1]) + column


def reach(weights: Float64, share: float) -> int:
    """Return the first index at which the running sum of weights exceeds `share` of the total.

    The weight there is never zero.
    """
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, share * sums[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


class LogitRow:
    """One row of fp16 logits [vocabulary] as computed, in which a few tokens may be changed or absent.

    The logit of an absent token is -infinity. `pages` has buffers of the vocabulary's size for all rows:
    allocating new memory for each row takes as long as the arithmetic.
    """

    def __init__(self, logits: Logits, pages: "Pages") -> None:
        self._pages = pages
        self._keys = pages.keys
        self._changed = Candidates(np.empty(0, np.int64), np.empty(0))
        self._size = len(logits)
        read_keys(logits, self._keys[: self._size], pages.signs[: self._size])

    @cached_property
    def _indices(self) -> NDArray[np.intp]:
        """The keys' 16 bits as indices. Use them with mode "wrap": numpy's checks of indices double the
        cost."""
        indices = self._pages.indices
        np.copyto(indices, self._keys.view(np.uint16))
        return indices

    @cached_property
    def _groups(self) -> Keys:
        """The largest key of each group. Of n groups, group g has the tokens g, g + n, g + 2 n ..."""
        maxima: Keys = self._keys.reshape(_GROUP, -1).max(axis=0)
        return maxima

    @cached_property
    def _group_indices(self) -> NDArray[np.intp]:
        return self._groups.view(np.uint16).astype(np.intp)

    @cached_property
    def highest(self) -> float:
        """The largest logit; infinity or -infinity if it is not a finite number."""
        key = int(self._groups.max())
        return max(float(VALUES[key & 0xFFFF]), float(self._changed.logits.max(initial=-np.inf)))

    def change(self, ids: TokenIds, logits: Float64) -> None:
        """Change the logits of tokens, each at most once. Call this at most once, before any other method."""
        self._keys[ids] = ABSENT_KEY
        present = logits > -np.inf
        ids, logits = ids[present], logits[present]
        order = np.lexsort((ids, -logits))
        self._changed = Candidates(ids[order], logits[order])

    def only(self, allowed: NDArray[np.bool_]) -> None:
        """Make the tokens absent that are not `allowed` [vocabulary]. Call this before any result is read."""
        # A key becomes the minimum of itself and either ABSENT_KEY, or the largest integer (ABSENT_KEY - 1
        # wraps). This takes a tenth of the time of a selection by the mask.
        most, keys = self._pages.signs, self._keys[: self._size]
        np.copyto(most, allowed)
        np.subtract(np.int16(ABSENT_KEY), most, out=most)
        np.minimum(keys, most, out=keys)
        kept = allowed[self._changed.ids]
        self._changed = Candidates(self._changed.ids[kept], self._changed.logits[kept])

    def values(self, ids: TokenIds) -> Float64:
        """Return the logits of tokens that were not changed; -infinity for absent ones."""
        values: Float64 = VALUES[self._keys[ids].view(np.uint16)]
        return values

    def largest(self, count: int) -> Candidates:
        """Return the `count` likeliest tokens, or all present ones if they are fewer."""
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
        """The HEAD likeliest tokens. Mostly a token can be chosen from them without examining the rest."""
        return self.largest(HEAD)

    @cached_property
    def log_mass(self) -> float:
        """The logarithm of the sum of the exponentials of all logits, to about 1e-6."""
        weights = np.exp(self.head.logits - self.highest)
        mass = float(weights.sum())
        # If the head's last token matters, the tokens after it mostly do, too, and no bound is computed.
        if weights[-1] > _NEGLIGIBLE or self.bound_mass(self.head, 1.0) > _NEGLIGIBLE:
            mass += self.rest(self.head, 1.0).mass
        return self.highest + math.log(mass)

    def at_least(self, limit: float) -> Candidates:
        """Return all tokens whose logit is `limit` or more."""
        found = self.head
        while found.logits[-1] >= limit:
            wider = self.largest(len(found) * _GROUP)
            if len(wider) == len(found):
                break
            found = wider
        return found.first(int(np.searchsorted(-found.logits, -limit, side="right")))

    def by_value(self) -> Values:
        """Return the distinct logits, each with its number of tokens."""
        counts = falling(np.bincount(self._indices, minlength=1 << 16))
        present = np.flatnonzero(counts != 0)
        keys = FALLING[present]
        logits = np.concatenate((VALUES[keys.view(np.uint16)], self._changed.logits))
        ones = np.ones(len(self._changed), dtype=np.int64)
        return Values(logits, np.concatenate((counts[present], ones)), keys)

    def keep(self, values: Values, places: TokenIds, last: int, count: int) -> None:
        """Keep only the tokens of the values at `places`, and the first `count` tokens of the value at
        `last`.

        The keys at `places` must be contiguous: no value between two of them is removed.
        """
        size = len(values.keys)
        kept = values.keys[places[places < size]]
        keys = self._keys[: self._size]
        allowed = keys >= kept.min(initial=np.iinfo(np.int16).max)
        allowed &= keys <= kept.max(initial=ABSENT_KEY)
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
            rows, places = np.divmod(np.flatnonzero(near >= max(limit, ABSENT_KEY + 1)), len(columns))
            ids = rows * len(groups) + columns[places]
        elif count < self._size:
            limit = np.partition(keys, len(keys) - count)[len(keys) - count]
            ids = np.flatnonzero(keys >= max(limit, ABSENT_KEY + 1))
        else:
            ids = np.flatnonzero(keys > ABSENT_KEY)
        falling = np.bitwise_not(keys[ids])
        ids = ids[np.argsort(falling, kind="stable")[:count]]
        logits = self.values(ids)
        present = int(np.count_nonzero(logits > -np.inf))
        return Candidates(ids[:present], logits[:present])

    def bound_mass(self, above: Candidates, temperature: float) -> float:
        """Return an upper bound of the mass of all tokens except `above`, the likeliest ones.

        The row's largest logit has a weight of 1. Every token counts as likely as the likeliest of its group,
        but not more than the last of `above`.
        """
        table, scale = weight_table(temperature, self.highest)
        limit = math.exp((float(above.logits[-1]) - self.highest) / temperature)
        weights = np.minimum(table.take(self._group_indices, mode="wrap"), np.float32(limit / scale))
        changed = np.minimum(np.exp((self._changed.logits - self.highest) / temperature), limit)
        return _GROUP * float(weights.sum()) * scale * _MARGIN + float(changed.sum())

    def bound_moment(self, above: Candidates) -> float:
        """Return an upper bound of the sum of mass times drop of all tokens except `above`, at temperature 1.

        A token's drop is the distance of its logit to the largest one.
        """
        groups = FINITE_VALUES.take(self._group_indices, mode="wrap").astype(np.float64)
        limit = self.highest - float(above.logits[-1])
        return _GROUP * _moment(self.highest - groups, limit) + _moment(
            self.highest - self._changed.logits, limit
        )

    def rest(self, above: Candidates, temperature: float) -> Rest:
        """Return all tokens except `above`, the likeliest ones; the next call overwrites its arrays."""
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
    """Return an upper bound of the sum of x e^-x over `drops`, each x being at least `least`.

    x e^-x falls from x = 1 on.
    """
    falling = np.maximum(drops, max(least, 1.0))
    return float((falling * np.exp(-falling)).sum())
