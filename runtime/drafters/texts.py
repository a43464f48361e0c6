"""Hold texts and the rows of a pass in arrays, as compiled functions read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters import Outcome, TopKLogits

Tops = NDArray[np.int32]
"""[rows, count]: the likeliest tokens after each row, likeliest first; -1 if unknown."""

_MIN_LOGIT = -1e9
"""Less than any logit."""


@dataclass(frozen=True)
class SeenRows:
    """The input and output of the rows that a pass ran for a sequence.

    `inputs[i]` is the token of row i; row 0 has the last token before the committed ones. `tops[i]` are the
    likeliest tokens after it, and `shares[i]` are their probabilities, normalized to a sum of 1. Rows whose
    index is at least the number of committed tokens follow a wrong guess.
    """

    inputs: NDArray[np.int32]
    tops: Tops
    shares: NDArray[np.float64]


def seen_rows(
    last: int, committed: Sequence[int], outcome: Outcome, rows: TopKLogits, count: int
) -> SeenRows:
    """Return the rows of a pass with the `count` likeliest tokens of each.

    `last` is the last token before the committed ones. A row whose logits are not finite counts as unknown.
    """
    guessed = outcome.proposed.tokens
    # Forced tokens ran before the draft. If there is a proposal, it begins with them; else they are
    # committed.
    behind = len(rows) - 1
    inputs = np.array([last, *guessed[:behind], *committed[len(guessed) : behind]], np.int32)[: len(rows)]
    tops = np.full((len(rows), count), -1, np.int32)
    logits = np.full((len(rows), count), -np.inf)
    for place in range(len(rows)):
        top = rows.top(place, count)
        if top and all(isfinite(candidate.logit) for candidate in top):
            tops[place, : len(top)] = [candidate.token for candidate in top]
            logits[place, : len(top)] = [candidate.logit for candidate in top]
    powers = np.exp(logits - logits.max(axis=1, initial=_MIN_LOGIT, keepdims=True))
    return SeenRows(inputs, tops, powers / np.maximum(powers.sum(axis=1, keepdims=True), 1.0))


SPARE_TOKENS = 64

Tokens = NDArray[np.int32]


class GrowingText:
    """The tokens of a sequence, `tokens[:length]`.

    Entries after them are spare room, where a chain may write its guesses. `tokens` is replaced by a larger
    array when the text grows beyond it.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: Tokens = np.zeros(2 * len(tokens) + SPARE_TOKENS, np.int32)
        self.length = 0
        self.append(tokens)

    def append(self, more: Sequence[int]) -> None:
        """Append tokens to the text."""
        self.make_room(len(more))
        self.tokens[self.length : self.length + len(more)] = more
        self.length += len(more)

    def make_room(self, count: int) -> None:
        """Grow the array if fewer than `count` tokens fit after the text."""
        if self.length + count > len(self.tokens):
            grown = np.zeros(2 * (self.length + count) + SPARE_TOKENS, np.int32)
            grown[: self.length] = self.tokens[: self.length]
            self.tokens = grown
