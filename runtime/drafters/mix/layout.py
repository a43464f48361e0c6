"""Define the layout of mix: the numbers of its contexts, inputs and weight sets, and its image's parts."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import structure

CONTEXTS = 16
"""The number of kinds of context. Each is looked up in this text's nodes and in the memory's nodes."""

POINTER = 2 * CONTEXTS
PRIOR = POINTER + 1
FIRST_OTHER = PRIOR + 1
RECYCLE = FIRST_OTHER
JACOBI = RECYCLE + 1
DATASTORE = JACOBI + 1
INPUTS = DATASTORE + 1
"""The number of inputs of a candidate: contexts in this text, contexts in memory, the copy pointer, the
prior, other sources."""

CANDIDATES = 32
UNITS = 16
"""The units of the hidden layer."""

ORDERS = 7
"""The number of lengths of a context of plain tokens: 0 to 6."""

RUN_STEPS, MISS_STEPS = 8, 4
"""The bins of a copy pointer's run, and of its misses among the last three tokens (also: among the five
tokens before these)."""

SHAPES_OF_TOKENS, TABLES_MATCHED = 16, 4
"""The number of shapes (traits.py), and of combinations of the two tables that have a context of two or more
tokens."""

BY_LOCAL_ORDER = 1
BY_MEMORY_ORDER = BY_LOCAL_ORDER + ORDERS
BY_POINTER = BY_MEMORY_ORDER + ORDERS
NO_POINTER = BY_POINTER + RUN_STEPS * MISS_STEPS
BY_SHAPE = NO_POINTER + 1
SETS = BY_SHAPE + SHAPES_OF_TOKENS * TABLES_MATCHED
CHOSEN = 5
"""The weight sets: the global one, and for each of four properties of the situation one per value. CHOSEN is
the number of sets in use at a time: the global one and one for each property."""

FIRST_HIDDEN = SETS
OUTPUT = FIRST_HIDDEN + INPUTS
WEIGHT_ROWS = OUTPUT + 1
WEIGHT_COLUMNS = INPUTS + UNITS
"""The rows of the weights' array. First, each weight set has a weight per input and a bias per unit. Then
each input has a weight per unit. The last row has the units' output weights."""

BIASES = 6
BIAS_ROOM = 1 << 15
"""A candidate's score has BIASES learnt biases, from a hash table of BIAS_ROOM numbers without keys."""

SURE_STEPS = 16
POINTER_RATES = 0
PRIOR_RATES = POINTER_RATES + RUN_STEPS * MISS_STEPS * MISS_STEPS
SURE_RATES = PRIOR_RATES + 136
RATES = SURE_RATES + SURE_STEPS * TABLES_MATCHED
"""The measured rates of being right: of the pointer by its state, of a candidate by age and count (129 of the
136 are used), of the best candidate by its share."""

RATE, SEEN, LOGIT, RATE_COLUMNS = 0, 1, 2, 4
"""The columns of a rate: its value, the number of its updates, and the logarithm of its odds; one is
unused."""

HEADER = 64
FOLDED_ROOM = 24
"""The size of the header in numbers. Its last 2 x FOLDED_ROOM are the hashes and lengths of the texts that
were learnt last; the first ones are named below."""
TAKEN, REQUESTS, TOKENS, NEXT_FOLDED = 0, 1, 2, 3
FIRST_FOLDED = HEADER - 2 * FOLDED_ROOM

NODE_WORDS = 8
NODE_BYTES = 4 * NODE_WORDS
BUCKET = 4
"""The number of nodes among which a context's node is searched."""

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
    """The arrays of one text.

    `tokens` have room after the text. `state` is described in state.py. `nodes` and `octets` are two views of
    the text's nodes, and `words` is its words table (nodes.py). `heads` are the places of matches
    (pointer.py).
    """

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
    """Return the number of nodes in whole buckets that fit into an image of `size` bytes."""
    return max(0, (size - FIXED_BYTES) // (BUCKET * NODE_BYTES)) * BUCKET


def view_image(image: Octets) -> Image:
    """Return the parts of an image as views; raise ValueError if it is too small or not aligned."""
    rows = rows_within(len(image))
    if rows < BUCKET or image.ctypes.data % 64:
        raise ValueError(
            f"an image of {len(image)} bytes is too small for mix, or is not aligned to 64 bytes"
        )
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
