"""A session's working memory, which proposals overwrite: 14 KB."""

from typing import NamedTuple

import numpy as np

from anespec.runtime.drafters.candidates import MOST_CANDIDATES, Chances
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
"""Tokens of a draft: more than any pass runs of one sequence."""

CHOSEN_SETS = 0
CHOSEN_LOCAL, CHOSEN_MEMORY, CHOSEN_POINTER, CHOSEN_SHAPE = (CHOSEN_SETS + kind for kind in range(1, CHOSEN))
PRIORS = CHOSEN_SETS + CHOSEN
ACTIVE_COUNT = PRIORS + CANDIDATES
ACTIVE = ACTIVE_COUNT + 1
SLOTS = ACTIVE + INPUTS
SLOT_COUNT = 128
ENTRY_COUNT = SLOTS + SLOT_COUNT
SPEAKER = ENTRY_COUNT + 1
BEST = SPEAKER + 1
ORDER = BEST + 1
MARKS = ORDER + 1
"""Marks, an array of integers: the chosen weight sets, the global one first, then by longest local order, by
longest one in memory, by the pointer and by shape; which prior each candidate has; how many inputs any
candidate has, and which; where a token stands among the candidates; how many entries there are;
of a chain's first token which input spoke most for it, its place among the candidates, and how many tokens of
context stood in this text before."""

MOST_ENTRIES = 2 * CONTEXTS * FOLLOWERS + (INPUTS - FIRST_OTHER) * MOST_CANDIDATES + CANDIDATES + 1
"""An entry says that a candidate has an input, with its value; a candidate has only a few of all inputs."""

UNIT_BIASES, SUMS = 0, 1
SLOPE_ROWS = INPUTS + 3
"""Of the room for sums and slopes. `score` leaves the units' biases and the linear part's weight of each
input in rows 0 and 1; `teach` then has a row per input, for what its units are to move by, and three more."""


class Scratch(NamedTuple):
    """What the arrays hold.

    `state` is where a chain stands; `found` [CANDIDATES] are the tokens that may come, `marks` [MARKS] see
    above. Entry i is of candidate `entries[i, 0]` and input `entries[i, 1]`, of value `values[i]`. `places`
    [CANDIDATES, BIASES] are where biases stand; `others` and `chances` [MOST_CANDIDATES] what one source says
    beside mix; `slopes` sums and slopes (scorer.py); `units` [CANDIDATES, UNITS] what units hold; `shares`
    [CANDIDATES] the candidates' shares, in (0, 1); `claims` [LONGEST_CHAIN] the chances of a chain's tokens.
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
    """Room for one chain at a time."""
    return Scratch(
        state=np.zeros(STATE, np.int64),
        found=np.zeros(CANDIDATES, np.int32),
        marks=np.zeros(MARKS, np.int64),
        entries=np.zeros((MOST_ENTRIES, 2), np.int32),
        values=np.zeros(MOST_ENTRIES, np.float32),
        places=np.zeros((CANDIDATES, BIASES), np.int32),
        others=np.zeros(MOST_CANDIDATES, np.int32),
        chances=np.zeros(MOST_CANDIDATES, np.float64),
        slopes=np.zeros((SLOPE_ROWS, max(INPUTS, UNITS)), np.float32),
        units=np.zeros((CANDIDATES, UNITS), np.float32),
        shares=np.zeros(CANDIDATES, np.float32),
        claims=np.zeros(LONGEST_CHAIN, np.float64),
    )
