"""Room that proposals write to and nobody keeps anything in; one for all sessions of a source."""

import numpy as np

from anespec.runtime.drafters.candidates import MOST_CANDIDATES
from anespec.runtime.drafters.mix.inputs import MARKS, MOST_ENTRIES
from anespec.runtime.drafters.mix.layout import BIASES, CANDIDATES, INPUTS, UNITS
from anespec.runtime.drafters.mix.scorer import SLOPE_ROWS
from anespec.runtime.drafters.mix.state import STATE

LONGEST_CHAIN = 64


class Scratch:
    """See inputs.gather and scorer.score for what the arrays hold."""

    def __init__(self) -> None:
        self.state = np.zeros(STATE, np.int64)
        self.found = np.zeros(CANDIDATES, np.int32)
        self.marks = np.zeros(MARKS, np.int64)
        self.entries = np.zeros((MOST_ENTRIES, 2), np.int32)
        self.values = np.zeros(MOST_ENTRIES, np.float32)
        self.places = np.zeros((CANDIDATES, BIASES), np.int32)
        self.others = np.zeros(MOST_CANDIDATES, np.int32)
        self.chances = np.zeros(MOST_CANDIDATES, np.float64)
        self.slopes = np.zeros((SLOPE_ROWS, max(INPUTS, UNITS)), np.float32)
        self.units = np.zeros((CANDIDATES, UNITS), np.float32)
        self.shares = np.zeros(CANDIDATES, np.float32)
        self.claims = np.zeros(LONGEST_CHAIN, np.float64)
