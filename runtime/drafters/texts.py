"""A text that compiled functions look at: an array with spare room behind it, where a chain is tried out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SPARE = 64

Tokens = NDArray[np.int32]


class GrowingText:
    """The tokens of a sequence, `tokens[:length]`.

    Entries behind them may be overwritten. `tokens` is replaced by another array when the text grows.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: Tokens = np.zeros(2 * len(tokens) + SPARE, np.int32)
        self.length = 0
        self.append(tokens)

    def append(self, more: Sequence[int]) -> None:
        """Let the text go on."""
        self.make_room(len(more))
        self.tokens[self.length : self.length + len(more)] = more
        self.length += len(more)

    def make_room(self, count: int) -> None:
        """See to it that `count` tokens fit behind the text."""
        if self.length + count > len(self.tokens):
            grown = np.zeros(2 * (self.length + count) + SPARE, np.int32)
            grown[: self.length] = self.tokens[: self.length]
            self.tokens = grown
