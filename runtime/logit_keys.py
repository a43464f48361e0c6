"""16-bit integers that order like fp16 logits, and what is looked up by them.

A logit's key is its magnitude's bits with its sign, so that 0 and -0 have the same. Tables have an entry per
key, at its 16 bits as an unsigned number.
"""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import Logits

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
