"""Learnt biases of candidates, from the token's own features, independent of contexts; compiled.

By what they are of: (the shape of the last token, of this one); (age and count here, shape); the token; (the
last two shapes, the token); (the last three shapes, shape); (the last shape, the token without case and
space). Each is a number of a table that is hashed into; what falls on the same place shares it.
"""

import numpy as np

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.contexts import SEED, mixed
from anespec.runtime.drafters.mix.layout import BIAS_ROOM, BIASES, Longs, Numbers, Words
from anespec.runtime.drafters.mix.state import SHAPE_BITS, SHAPE_MASK, SHAPES, folded_of, trait_of

BIAS_STEP = np.float32(0.02)
_TWO_SHAPES = (1 << 2 * SHAPE_BITS) - 1
_THREE_SHAPES = (1 << 3 * SHAPE_BITS) - 1


@compiled_lean("int64(int64, int64)")
def _place_of(first: int, second: int) -> int:
    return mixed(mixed(mixed(SEED, first), second), SEED) >> 20 & BIAS_ROOM - 1


@compiled_lean("void(int64, int64, int64, int64[::1], int32[:,::1], int32[:,::1])")
def place_biases(candidate: int, token: int, prior: int, state: Longs, traits: Words, places: Words) -> None:
    """Write the indices of a candidate's biases; `prior` gives its age and frequency."""
    shapes = state[SHAPES]
    shape = trait_of(traits, token) & SHAPE_MASK
    last = shapes & SHAPE_MASK
    places[candidate, 0] = last << SHAPE_BITS | shape
    places[candidate, 1] = (1 << 2 * SHAPE_BITS) + (prior << SHAPE_BITS | shape)
    places[candidate, 2] = _place_of(token, -1)
    places[candidate, 3] = _place_of(token, shapes & _TWO_SHAPES)
    places[candidate, 4] = _place_of(-2 - shape, shapes & _THREE_SHAPES)
    places[candidate, 5] = _place_of(folded_of(traits, token), -2 - last)


@compiled_lean("float32(int64, int32[:,::1], float32[::1])")
def bias_of(candidate: int, places: Words, biases: Numbers) -> np.float32:
    """The sum of a candidate's biases."""
    total = np.float32(0)
    for kind in range(BIASES):
        total += biases[places[candidate, kind]]
    return total


@compiled_lean("void(int64, float32, int32[:,::1], float32[::1])")
def move_biases(candidate: int, error: np.float32, places: Words, biases: Numbers) -> None:
    """Move a candidate's biases by how far its share was wrong."""
    for kind in range(BIASES):
        biases[places[candidate, kind]] += BIAS_STEP * error
