"""A text that compiled functions look at: an array with spare room behind it, where a chain is tried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters import Outcome, TopKLogits

# The rows that a pass ran for a sequence, as arrays: what compiled functions learn from.

Tops = NDArray[np.int32]
"""[rows, count]: the likeliest tokens behind each row, likeliest first; -1 where nothing is known."""

_LEAST = -1e9
"""Less than any logit."""


@dataclass(frozen=True)
class SeenRows:
    """The input and output of the rows of a pass.

    `inputs[i]` is the token of row i; row 0 is that of the last token before what was committed. `tops[i]`
    are the likeliest tokens behind it, and `shares[i]` what each has of all their probability. Rows from the
    number of committed tokens on stand behind a wrong guess.
    """

    inputs: NDArray[np.int32]
    tops: Tops
    shares: NDArray[np.float64]


def seen_rows(
    last: int, committed: Sequence[int], outcome: Outcome, rows: TopKLogits, count: int
) -> SeenRows:
    """The rows of a pass with the `count` likeliest tokens of each.

    `last` is the last token before what was committed. A row whose logits are not finite counts as unknown.
    """
    guessed = outcome.proposed.tokens
    # What a grammar forced ran before any draft, and is a part of what is said to be proposed, if any is.
    behind = len(rows) - 1
    inputs = np.array([last, *guessed[:behind], *committed[len(guessed) : behind]], np.int32)[: len(rows)]
    tops = np.full((len(rows), count), -1, np.int32)
    logits = np.full((len(rows), count), -np.inf)
    for place in range(len(rows)):
        top = rows.top(place, count)
        if top and all(isfinite(candidate.logit) for candidate in top):
            tops[place, : len(top)] = [candidate.token for candidate in top]
            logits[place, : len(top)] = [candidate.logit for candidate in top]
    powers = np.exp(logits - logits.max(axis=1, initial=_LEAST, keepdims=True))
    return SeenRows(inputs, tops, powers / np.maximum(powers.sum(axis=1, keepdims=True), 1.0))


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
