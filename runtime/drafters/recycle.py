"""Draft by Token Recycling: guess the tokens that the verifier ranked likely after the same token before.

Luo et al., "Turning Trash into Treasure" (arXiv 2408.08696). A table stores the successors of each token: the
likeliest tokens of its latest row, also of a row after a wrong guess. A smaller table by the last two tokens
is used first. Guesses form a chain here, not a tree. The probability of a guess is the share of right guesses
among those with a similar share of the verifier's probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters import DraftCost, Outcome
from anespec.runtime.drafters.candidates import (
    MAX_CANDIDATES,
    Chances,
    Kinds,
    Rates,
    add_candidate,
    chances_of,
    count_guesses,
    fresh_rates,
    pair_row,
)
from anespec.runtime.drafters.chains import ChainSource
from anespec.runtime.drafters.compiled import compiled, compiled_lean
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens, Tops

SUCCESSORS = 8
PAIR_ROWS = 1 << 15
"""Rows of the table by two tokens; a pair replaces another pair in the same row."""

MAX_TENANTS = 16
_SHARES = 16
"""The number of bins of shares; the accuracy of guesses is counted by table and by the bin of the share that
the verifier gave the token."""

_SHARE_BITS = 7
_TOKEN_BITS = 31 - _SHARE_BITS
MOST_TOKENS = (1 << _TOKEN_BITS) - 1
"""The largest vocabulary. A successor is one int32: its share in the high bits, its token + 1 in the low
bits; 0 is none."""

Table = NDArray[np.int32]
"""[vocabulary, SUCCESSORS], or [PAIR_ROWS, SUCCESSORS + 2]: the successors of a token, or of a pair of tokens
and then the pair, + 1 each."""


@compiled_lean("int64(int32[::1], int64, int64, int32[::1], int64[::1])")
def _take(row: Table, kind: int, count: int, found: Tokens, kinds: Kinds) -> int:
    """Append those successors of a row that are not yet among the `count` candidates; return their number."""
    for place in range(SUCCESSORS):
        packed = row[place]
        if packed == 0:
            break
        share = (packed >> _TOKEN_BITS) * _SHARES // (1 << _SHARE_BITS)
        count = add_candidate((packed & MOST_TOKENS) - 1, kind + share, count, found, kinds)
    return count


@compiled_lean("void(int32[::1], int32[::1], float64[::1])")
def _keep(row: Table, top: Tokens, shares: Chances) -> None:
    """Replace a row's successors by the tokens `top` with their `shares`."""
    for place in range(SUCCESSORS):
        row[place] = 0
        if place < len(top) and top[place] >= 0:
            share = min(int(shares[place] * (1 << _SHARE_BITS)), (1 << _SHARE_BITS) - 1)
            row[place] = share << _TOKEN_BITS | (top[place] + 1)


@compiled_lean("UniTuple(int64, 2)(int32[:,::1], int32[:,::1], int32[::1], int64, int32[::1], int64[::1])")
def _look_up(
    table: Table, pairs: Table, text: Tokens, length: int, found: Tokens, kinds: Kinds
) -> tuple[int, int]:
    """Write the candidates after `text[:length]` and their kinds to `found` and `kinds`.

    Return their number, and the number of context tokens that the first one is based on.
    """
    if length < 1:
        return 0, 0
    count = 0
    last = text[length - 1]
    if length > 1:
        before = text[length - 2]
        row = pair_row(before, last, PAIR_ROWS)
        if pairs[row, SUCCESSORS] == before + 1 and pairs[row, SUCCESSORS + 1] == last + 1:
            count = _take(pairs[row], 0, count, found, kinds)
    order = 2 if count else 1
    if 0 <= last < len(table):
        count = _take(table[last], order * _SHARES, count, found, kinds)
    return count, order


@compiled(
    "UniTuple(int64, 2)(int32[:,::1], int32[:,::1], float64[:,::1], int32[::1], int64, "
    "int32[::1], float64[::1])"
)
def recycle_guess(
    table: Table, pairs: Table, rates: Rates, text: Tokens, length: int, found: Tokens, chances: Chances
) -> tuple[int, int]:
    """Write the candidates after `text[:length]` and their probabilities to `found` and `chances`.

    Return their number, at most MAX_CANDIDATES, and the number of context tokens that the first one is based
    on.
    """
    kinds = np.empty(MAX_CANDIDATES, np.int64)
    count, order = _look_up(table, pairs, text, length, found, kinds)
    chances_of(rates, count, kinds, chances)
    return count, order


@compiled(
    "void(int32[:,::1], int32[:,::1], float64[:,::1], int32[::1], int64, int64, int32[::1], int32[:,::1], "
    "float64[:,::1])"
)
def recycle_learn(
    table: Table,
    pairs: Table,
    rates: Rates,
    text: Tokens,
    before: int,
    after: int,
    inputs: Tokens,
    tops: Tops,
    shares: Chances,
) -> None:
    """Learn from a pass with which the text grew from `before` tokens to `after`; see SeenRows for its rows.

    The accuracy of guesses is counted before the update. Rows after a wrong guess are stored before the
    others, so that the others may replace them.
    """
    found = np.empty(MAX_CANDIDATES, np.int32)
    kinds = np.empty(MAX_CANDIDATES, np.int64)
    for length in range(before, after):
        count, _ = _look_up(table, pairs, text, length, found, kinds)
        count_guesses(rates, count, found, kinds, text[length])
    right = min(after - before, len(inputs))
    for turn in range(len(inputs)):
        place = right + turn if right + turn < len(inputs) else right + turn - len(inputs)
        last = inputs[place]
        if tops[place, 0] < 0 or not 0 <= last < len(table):
            continue
        _keep(table[last], tops[place], shares[place])
        first = inputs[place - 1] if place else text[before - 2] if before > 1 else -1
        if first >= 0:
            row = pair_row(first, last, PAIR_ROWS)
            _keep(pairs[row], tops[place], shares[place])
            pairs[row, SUCCESSORS] = first + 1
            pairs[row, SUCCESSORS + 1] = last + 1


@dataclass(frozen=True)
class Recycled:
    """The memory of one tenant: the tables by one token and by two, and the rates of right guesses."""

    table: Table
    pairs: Table
    rates: Rates

    @classmethod
    def fresh(cls, vocabulary: int) -> "Recycled":
        """Return empty tables. Their pages take no memory before they are written."""
        shares = [(step + 0.5) / _SHARES for step in range(_SHARES)]
        return cls(
            np.zeros((vocabulary, SUCCESSORS), np.int32),
            np.zeros((PAIR_ROWS, SUCCESSORS + 2), np.int32),
            fresh_rates([discount * share for discount in (0.9, 0.5, 0.2) for share in shares]),
        )


class RecycleGuesser:
    """A guesser for one sequence from its tenant's tables."""

    name = "recycle"
    wants_top = SUCCESSORS

    def __init__(self, recycled: Recycled) -> None:
        self._recycled = recycled

    def begin(self, text: GrowingText) -> None:
        """Do nothing: the results of a prompt's rows are not available."""

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Guess the successors of the last two tokens, then those of the last token."""
        learnt = self._recycled
        return recycle_guess(learnt.table, learnt.pairs, learnt.rates, tokens, length, found, chances)

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Store the likeliest tokens of the rows of a pass."""
        learnt = self._recycled
        recycle_learn(
            learnt.table, learnt.pairs, learnt.rates, text.tokens, before, text.length,
            rows.inputs, rows.tops, rows.shares,
        )  # fmt: skip

    def end(self, text: GrowingText) -> None:
        """Do nothing: everything was learnt at each pass."""


class RecycleSource(ChainSource[Recycled]):
    """A source whose sessions share their tenant's tables."""

    name = "recycle"
    cost = DraftCost(microseconds=20)

    def __init__(self, vocabulary: int, most_tenants: int = MAX_TENANTS) -> None:
        """Take the size of the verifier's vocabulary, and the number of tenants whose tables are kept."""
        super().__init__(lambda: Recycled.fresh(vocabulary), most_tenants)

    def guesser(self, learnt: Recycled, reference: Sequence[int] | None) -> RecycleGuesser:
        """Return a session's guesser; it makes no use of a reference."""
        return RecycleGuesser(learnt)
