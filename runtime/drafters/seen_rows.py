"""The rows that a pass ran for a sequence, as arrays: what compiled functions learn from."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters import Outcome, RowTops

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


def seen_rows(last: int, committed: Sequence[int], outcome: Outcome, rows: RowTops, count: int) -> SeenRows:
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
