"""Candidates for the next token, each of a kind, and how often guesses of its kind came true; compiled."""

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.texts import Tokens

MOST_CANDIDATES = 8

PRIOR_WEIGHT = 4.0
"""So many guesses a kind's first chance counts as."""

MOST_TRIED = 500.0
"""Older guesses count half once there are so many of a kind, so that a rate follows what changes."""

Rates = NDArray[np.float64]
"""[kinds, 2]: how many guesses of a kind were right, and how many there were."""

Kinds = NDArray[np.int64]
Chances = NDArray[np.float64]


def fresh_rates(chances: list[float]) -> Rates:
    """Rates of as many kinds, which begin with these chances, in (0, 1)."""
    right = PRIOR_WEIGHT * np.array(chances)
    return np.stack([right, np.full_like(right, PRIOR_WEIGHT)], axis=1)


@compiled_lean("int64(int64, int64, int64, int32[::1], int64[::1])")
def add_candidate(token: int, kind: int, count: int, found: Tokens, kinds: Kinds) -> int:
    """Append a candidate to the `count` that there are, where there is room and it is none of them; how many
    there are then."""
    if count == MOST_CANDIDATES:
        return count
    for known in range(count):
        if found[known] == token:
            return count
    found[count] = token
    kinds[count] = kind
    return count + 1


@compiled_lean("void(float64[:,::1], int64, int64[::1], float64[::1])")
def chances_of(rates: Rates, count: int, kinds: Kinds, chances: Chances) -> None:
    """The chances of candidates of these kinds."""
    for place in range(count):
        chances[place] = rates[kinds[place], 0] / rates[kinds[place], 1]


@compiled_lean("void(float64[:,::1], int64, int32[::1], int64[::1], int64)")
def count_guesses(rates: Rates, count: int, found: Tokens, kinds: Kinds, came: int) -> None:
    """Count candidates where the token `came`."""
    for place in range(count):
        kind = kinds[place]
        rates[kind, 1] += 1
        if found[place] == came:
            rates[kind, 0] += 1
        if rates[kind, 1] > MOST_TRIED:
            rates[kind, 0] /= 2
            rates[kind, 1] /= 2


@compiled_lean("int64(int64, int64, int64)")
def pair_row(before: int, last: int, rows: int) -> int:
    """The row, of so many, at which a table by two tokens keeps this pair."""
    mixed = np.uint64(before) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(last) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    return int(np.int64(mixed >> np.uint64(40)) % rows)
