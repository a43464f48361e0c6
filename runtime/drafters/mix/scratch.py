"""Define a session's working memory of 14 KB, which every proposal overwrites."""

from typing import NamedTuple

import numpy as np

from anespec.runtime.drafters.candidates import MAX_CANDIDATES, Chances
from anespec.runtime.drafters.compiled import structure
from anespec.runtime.drafters.mix.layout import (
    BIASES,
    CANDIDATES,
    CHOSEN,
    CONTEXTS,
    FIRST_OTHER,
    INPUTS,
    UNITS,
    Longs,
    Numbers,
    Words,
)
from anespec.runtime.drafters.mix.nodes import FOLLOWERS
from anespec.runtime.drafters.mix.state import STATE

LONGEST_CHAIN = 64
"""The most tokens of a draft: more than a pass runs of one sequence."""

CHOSEN_SETS = 0
CHOSEN_LOCAL, CHOSEN_MEMORY, CHOSEN_POINTER, CHOSEN_SHAPE = (CHOSEN_SETS + kind for kind in range(1, CHOSEN))
PRIORS = CHOSEN_SETS + CHOSEN
ACTIVE_COUNT = PRIORS + CANDIDATES
ACTIVE = ACTIVE_COUNT + 1
SLOTS = ACTIVE + INPUTS
SLOT_COUNT = 128
ENTRY_COUNT = SLOTS + SLOT_COUNT
TOP_INPUT = ENTRY_COUNT + 1
BEST = TOP_INPUT + 1
ORDER = BEST + 1
MARKS = ORDER + 1
"""The places of numbers in the array `marks`. CHOSEN_SETS: the chosen weight sets, the global one first, then
by the longest order in this text, by the longest order in memory, by the pointer and by shape. PRIORS: the
prior of each candidate. ACTIVE_COUNT and ACTIVE: the inputs that some candidate has. SLOTS: a hash table from
tokens to places among the candidates. ENTRY_COUNT: the number of entries. About a chain's first token:
TOP_INPUT, the input that contributes most to it; BEST, its place among the candidates; ORDER, the tokens of
the longest context found in this text."""

MAX_ENTRIES = 2 * CONTEXTS * FOLLOWERS + (INPUTS - FIRST_OTHER) * MAX_CANDIDATES + CANDIDATES + 1
"""The most entries. An entry is an input of a candidate with its value; a candidate has few of all inputs."""

UNIT_BIASES, SUMS = 0, 1
SLOPE_ROWS = INPUTS + 3
"""The rows of `slopes`. `score` writes the units' biases to row 0 and the linear part's weight of each input
to row 1. `teach` then uses a row per input for the slopes of its weights per unit, and three more."""


class Scratch(NamedTuple):
    """The arrays of a session's working memory.

    `state` is the state at the end of a chain. `found` [CANDIDATES] are the candidates' tokens. For `marks`
    [MARKS] see above. Entry i gives candidate `entries[i, 0]` the input `entries[i, 1]` with value
    `values[i]`. `places` [CANDIDATES, BIASES] are the indices of the biases. `others` and `chances`
    [MAX_CANDIDATES] are the candidates of one other source. `slopes` are sums and slopes (scorer.py).
    `units` [CANDIDATES, UNITS] are the values of the hidden units. `shares` [CANDIDATES] are the candidates'
    shares, in (0, 1). `claims` [LONGEST_CHAIN] are the probabilities of a chain's tokens.
    """

    state: Longs
    found: Words
    marks: Longs
    entries: Words
    values: Numbers
    places: Words
    others: Words
    chances: Chances
    slopes: Numbers
    units: Numbers
    shares: Numbers
    claims: Chances


SCRATCH = structure(
    Scratch,
    "int64[::1], int32[::1], int64[::1], int32[:,::1], float32[::1], int32[:,::1], int32[::1], float64[::1], "
    "float32[:,::1], float32[:,::1], float32[::1], float64[::1]",
)


def fresh_scratch() -> Scratch:
    """Return a new working memory, for one chain at a time."""
    return Scratch(
        state=np.zeros(STATE, np.int64),
        found=np.zeros(CANDIDATES, np.int32),
        marks=np.zeros(MARKS, np.int64),
        entries=np.zeros((MAX_ENTRIES, 2), np.int32),
        values=np.zeros(MAX_ENTRIES, np.float32),
        places=np.zeros((CANDIDATES, BIASES), np.int32),
        others=np.zeros(MAX_CANDIDATES, np.int32),
        chances=np.zeros(MAX_CANDIDATES, np.float64),
        slopes=np.zeros((SLOPE_ROWS, max(INPUTS, UNITS)), np.float32),
        units=np.zeros((CANDIDATES, UNITS), np.float32),
        shares=np.zeros(CANDIDATES, np.float32),
        claims=np.zeros(LONGEST_CHAIN, np.float64),
    )
