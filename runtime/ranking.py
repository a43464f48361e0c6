"""Rows of fp16 logits by rank, without looking at every token more often than needed.

A vocabulary has 200,000 tokens, and a pass may sample from four rows within a millisecond. So a row is kept
as 16-bit integers that order like its logits, which numpy compares many times faster than fp16 numbers; the
likeliest tokens are found by the largest of every 16; and exponentials of all tokens, where they are wanted
at all, are looked up in a table of all fp16 numbers, made in float64, so that machines agree on them.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.logit_keys import (
    ABSENT,
    FALLING,
    FINITE_VALUES,
    SUM_BLOCK,
    VALUES,
    Float32,
    Float64,
    Keys,
    Pages,
    falling,
    read_keys,
    weight_table,
)
from anespec.runtime.passes import Logits

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
