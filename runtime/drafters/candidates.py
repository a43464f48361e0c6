"""Collect candidates for the next token, and count how often guesses of each kind were right; compiled.

A kind is where a candidate comes from, such as a table and a place in its row.
"""

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.texts import Tokens

MAX_CANDIDATES = 8

PRIOR_WEIGHT = 4.0
"""The number of guesses that a kind's initial probability counts as."""

MAX_COUNTED_GUESSES = 500.0
"""The number of guesses of a kind after which its counts are halved, so that a rate follows changes."""

Rates = NDArray[np.float64]
"""[kinds, 2]: the number of right guesses of a kind, and the number of its guesses."""

Kinds = NDArray[np.int64]
Chances = NDArray[np.float64]


def fresh_rates(chances: list[float]) -> Rates:
    """Return rates that begin with these probabilities, one in (0, 1) for each kind."""
    right = PRIOR_WEIGHT * np.array(chances)
    return np.stack([right, np.full_like(right, PRIOR_WEIGHT)], axis=1)


@compiled_lean("int64(int64, int64, int64, int32[::1], int64[::1])")
def add_candidate(token: int, kind: int, count: int, found: Tokens, kinds: Kinds) -> int:
    """Append a candidate to the first `count` ones if there is room and it is new; return their number."""
    if count == MAX_CANDIDATES:
        return count
    for known in range(count):
        if found[known] == token:
            return count
    found[count] = token
    kinds[count] = kind
    return count + 1


@compiled_lean("void(float64[:,::1], int64, int64[::1], float64[::1])")
def chances_of(rates: Rates, count: int, kinds: Kinds, chances: Chances) -> None:
    """Write the probability of each of `count` candidates, which is the rate of its kind, to `chances`."""
    for place in range(count):
        chances[place] = rates[kinds[place], 0] / rates[kinds[place], 1]


@compiled_lean("void(float64[:,::1], int64, int32[::1], int64[::1], int64)")
def count_guesses(rates: Rates, count: int, found: Tokens, kinds: Kinds, came: int) -> None:
    """Update the rates of `count` candidates: they were right if they equal the token that `came`."""
    for place in range(count):
        kind = kinds[place]
        rates[kind, 1] += 1
        if found[place] == came:
            rates[kind, 0] += 1
        if rates[kind, 1] > MAX_COUNTED_GUESSES:
            rates[kind, 0] /= 2
            rates[kind, 1] /= 2


@compiled_lean("int64(int64, int64, int64)")
def pair_row(before: int, last: int, rows: int) -> int:
    """Return the row of a pair of tokens in a table of `rows` rows; different pairs may share a row."""
    mixed = np.uint64(before) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(last) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    return int(np.int64(mixed >> np.uint64(40)) % rows)
