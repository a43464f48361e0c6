"""The layout of mix: the numbers of its contexts, inputs and weight sets, and the parts of its image."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import structure

CONTEXTS = 16
"""Kinds of context; each is looked up among the nodes of this text and among those of memory."""

POINTER = 2 * CONTEXTS
PRIOR = POINTER + 1
FIRST_OTHER = PRIOR + 1
RECYCLE = FIRST_OTHER
JACOBI = RECYCLE + 1
DATASTORE = JACOBI + 1
INPUTS = DATASTORE + 1
"""Inputs of a candidate: local contexts, those of memory, the copy pointer, the prior, other sources."""

CANDIDATES = 32
UNITS = 16
"""Of the hidden layer."""

ORDERS = 7
"""Lengths that a context of plain tokens may have, 0 to 6."""

RUN_STEPS, MISS_STEPS = 8, 4
"""A copy pointer's run in steps, and its misses among the last three tokens (also: among the five before)."""

SHAPES_OF_TOKENS, TABLES_MATCHED = 16, 4
"""Shapes (traits.py), and which of the two tables knew a context of two tokens or more."""

BY_LOCAL_ORDER = 1
BY_MEMORY_ORDER = BY_LOCAL_ORDER + ORDERS
BY_POINTER = BY_MEMORY_ORDER + ORDERS
NO_POINTER = BY_POINTER + RUN_STEPS * MISS_STEPS
BY_SHAPE = NO_POINTER + 1
SETS = BY_SHAPE + SHAPES_OF_TOKENS * TABLES_MATCHED
CHOSEN = 5
"""Weight sets: the global one and, of each kind, the one that a situation chooses."""

FIRST_HIDDEN = SETS
OUTPUT = FIRST_HIDDEN + INPUTS
WEIGHT_ROWS = OUTPUT + 1
WEIGHT_COLUMNS = INPUTS + UNITS
"""A set has a weight per input and a bias per unit; then each input has a weight per unit; then the units
have their own."""

BIASES = 6
BIAS_ROOM = 1 << 15
"""A candidate's score has a learnt bias of each of so many kinds, from a table without keys."""

SURE_STEPS = 16
POINTER_RATES = 0
PRIOR_RATES = POINTER_RATES + RUN_STEPS * MISS_STEPS * MISS_STEPS
SURE_RATES = PRIOR_RATES + 136
RATES = SURE_RATES + SURE_STEPS * TABLES_MATCHED
"""Measured rates: of the pointer by its state, of a candidate by age and count (129 of the 136), of the best
by its share."""

RATE, SEEN, LOGIT, RATE_COLUMNS = 0, 1, 2, 4
"""Of a rate: itself, how often it was moved, and the logarithm of its odds; one column is unused."""

HEADER = 64
FOLDED_ROOM = 24
"""The header's numbers: see below; the last 2 x FOLDED_ROOM are hashes and lengths of texts learnt last."""
TAKEN, REQUESTS, TOKENS, NEXT_FOLDED = 0, 1, 2, 3
FIRST_FOLDED = HEADER - 2 * FOLDED_ROOM

NODE_WORDS = 8
NODE_BYTES = 4 * NODE_WORDS
BUCKET = 4
"""Nodes among which a context's is looked for."""

Words = NDArray[np.int32]
Octets = NDArray[np.uint8]
Longs = NDArray[np.int64]
Numbers = NDArray[np.float32]


class Image(NamedTuple):
    """The parts of an image, as arrays over its bytes."""

    header: Longs
    rates: Numbers
    weights: Numbers
    squares: Numbers
    biases: Numbers
    nodes: Words
    octets: Octets


IMAGE = structure(
    Image,
    "int64[::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[::1], int32[:,::1], uint8[:,::1]",
)


class Text(NamedTuple):
    """One text and what is known of it: its tokens with room behind them, where it stands (state.py), its own
    nodes twice and its words (nodes.py), and where matches begin (pointer.py)."""

    tokens: Words
    state: Longs
    nodes: Words
    octets: Octets
    words: Words
    heads: Words


TEXT = structure(Text, "int32[::1], int64[::1], int32[:,::1], uint8[:,::1], int32[:,::1], int32[:,::1]")

TRAITS = "int32[:,::1]"
"""The type of a vocabulary's traits (traits.py)."""


_FIXED = HEADER * 8 + 4 * (RATES * RATE_COLUMNS + 2 * WEIGHT_ROWS * WEIGHT_COLUMNS + BIAS_ROOM)
FIXED_BYTES = -(-_FIXED // 64) * 64


def rows_within(size: int) -> int:
    """Return how many nodes fit into an image of `size` bytes, in whole buckets."""
    return max(0, (size - FIXED_BYTES) // (BUCKET * NODE_BYTES)) * BUCKET


def view_image(image: Octets) -> Image:
    """The parts of an image. Raises ValueError where it is too small or not aligned."""
    rows = rows_within(len(image))
    if rows < BUCKET or image.ctypes.data % 64:
        raise ValueError(f"an image of {len(image)} bytes, or where it lies, is none of mix's")
    parts: list[NDArray[np.generic]] = []
    start = 0
    for kind, shape in (
        (np.int64, (HEADER,)),
        (np.float32, (RATES, RATE_COLUMNS)),
        (np.float32, (WEIGHT_ROWS, WEIGHT_COLUMNS)),
        (np.float32, (WEIGHT_ROWS, WEIGHT_COLUMNS)),
        (np.float32, (BIAS_ROOM,)),
    ):
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        parts.append(image[start : start + size].view(kind).reshape(shape))
        start += size
    table = image[FIXED_BYTES : FIXED_BYTES + rows * NODE_BYTES]
    header, rates, weights, squares, biases = parts
    return Image(
        header.view(np.int64),
        rates.view(np.float32),
        weights.view(np.float32),
        squares.view(np.float32),
        biases.view(np.float32),
        table.view(np.int32).reshape(rows, NODE_WORDS),
        table.reshape(rows, NODE_BYTES),
    )
