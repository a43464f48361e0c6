"""Draft by lookahead decoding: spare rows continue the last pass's guesses, and their predictions are stored.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv 2402.02057). A
row after a wrong guess still gives the verifier's prediction for its position. These predictions are the
next pass's guesses for their positions (a Jacobi iteration). They are also stored in a pool as successors of
the one and of the two tokens before them, the most recent first; later chains are made from the pool. If
there is no guess, rows run tokens of the text, so that the iteration has a start. Rows form a chain here, so
the paper's separate window consists of the unused rows of the chain.
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

POOL_ROWS = 1 << 15
"""Rows of the pool by one token, and of the pool by two; a key replaces another key in the same row."""

NUM_SUCCESSORS = 4
"""The number of successors stored for a key, the most recent first."""

WINDOW = 64
"""The most guesses that are carried over to the next pass."""

MAX_TENANTS = 16

_DEPTHS = 8
_BEHIND = _DEPTHS
_BY_TWO = _BEHIND + _DEPTHS
_BY_ONE = _BY_TWO + NUM_SUCCESSORS
"""The first numbers of kinds of guesses. From 0 on: carried-over guesses by their place, if all guesses
before them are in the text. From _BEHIND on: the same, if not all are. Then successors in the pool by two
tokens and by one token, by their place in the row."""

FILLER_CHANCE = 0.005
"""The probability that is claimed for a token of the text that fills a row."""

_STRIDE = 40503
"""2^16 over the golden ratio, made odd. With it the tokens that fill neighbouring rows come from distant
places of the text."""

Window = NDArray[np.int32]
"""[2 + WINDOW]: the position of the first guess, the number of guesses, and the guesses."""

Pool = NDArray[np.int32]
"""[2, POOL_ROWS, 2 + NUM_SUCCESSORS]: the pools by one token and by two. A row is its key (two tokens) and
its successors; every token is stored + 1, and 0 is none."""


@compiled_lean("UniTuple(int64, 2)(int32[::1], int32[:,:,::1], int32[::1], int64, int32[::1], int64[::1])")
def _look_up(
    window: Window, pool: Pool, text: Tokens, length: int, found: Tokens, kinds: Kinds
) -> tuple[int, int]:
    """Write the candidates after `text[:length]` and their kinds to `found` and `kinds`.

    Return their number, and the number of context tokens that the first one of the pool is based on.
    """
    count = 0
    order = 0
    if length < 1:
        return 0, 0
    depth = length - window[0]
    if 0 <= depth < window[1]:
        kind = min(depth, _DEPTHS - 1)
        for place in range(depth):
            if text[window[0] + place] != window[2 + place]:
                kind = _BEHIND + min(depth, _DEPTHS - 1)
                break
        count = add_candidate(window[2 + depth], kind, count, found, kinds)
    last = text[length - 1]
    for tokens in (2, 1):
        if length < tokens:
            continue
        before = text[length - 2] if tokens == 2 else -1
        row = pool[tokens - 1, pair_row(before, last, POOL_ROWS)]
        if row[0] == before + 1 and row[1] == last + 1:
            order = order or tokens
            kind = _BY_TWO if tokens == 2 else _BY_ONE
            for place in range(NUM_SUCCESSORS):
                if row[2 + place]:
                    count = add_candidate(row[2 + place] - 1, kind + place, count, found, kinds)
    return count, order


@compiled(
    "UniTuple(int64, 2)(int32[::1], int32[:,:,::1], float64[:,::1], int32[::1], int64, "
    "int32[::1], float64[::1])"
)
def jacobi_guess(
    window: Window, pool: Pool, rates: Rates, text: Tokens, length: int, found: Tokens, chances: Chances
) -> tuple[int, int]:
    """Write the candidates after `text[:length]` and their probabilities to `found` and `chances`.

    Return their number, at most MAX_CANDIDATES, and the number of context tokens that the first one of the
    pool is based on.
    """
    kinds = np.empty(MAX_CANDIDATES, np.int64)
    count, order = _look_up(window, pool, text, length, found, kinds)
    chances_of(rates, count, kinds, chances)
    return count, order


@compiled_lean("void(int32[:,:,::1], int64, int64, int64)")
def _remember(pool: Pool, before: int, last: int, follows: int) -> None:
    """Put a successor first in the row of the pair (`before`, `last`), or of `last` alone if `before` is
    -1."""
    row = pool[0 if before < 0 else 1, pair_row(before, last, POOL_ROWS)]
    if row[0] != before + 1 or row[1] != last + 1:
        row[:] = 0
        row[0] = before + 1
        row[1] = last + 1
    place = 0
    while place < NUM_SUCCESSORS - 1 and row[2 + place] != 0 and row[2 + place] != follows + 1:
        place += 1
    while place > 0:
        row[2 + place] = row[1 + place]
        place -= 1
    row[2] = follows + 1


@compiled(
    "void(int32[::1], int32[:,:,::1], float64[:,::1], int32[::1], int64, int64, int32[::1], int32[:,::1])"
)
def jacobi_learn(
    window: Window,
    pool: Pool,
    rates: Rates,
    text: Tokens,
    before: int,
    after: int,
    inputs: Tokens,
    tops: Tops,
) -> None:
    """Learn from a pass with which the text grew from `before` tokens to `after`; see SeenRows for its rows.

    The accuracy of guesses is counted before the update. The predictions of rows after a wrong guess become
    the window of the next pass. They are stored in the pool before the others, so that the others come first.
    """
    found = np.empty(MAX_CANDIDATES, np.int32)
    kinds = np.empty(MAX_CANDIDATES, np.int64)
    for length in range(before, after):
        count, _ = _look_up(window, pool, text, length, found, kinds)
        count_guesses(rates, count, found, kinds, text[length])
    right = min(after - before, len(inputs))
    window[0] = after
    window[1] = 0
    for place in range(right, min(len(inputs), right + WINDOW)):
        if tops[place, 0] < 0:
            break
        window[2 + place - right] = tops[place, 0]
        window[1] += 1
    for turn in range(len(inputs)):
        place = right + turn if right + turn < len(inputs) else right + turn - len(inputs)
        follows = text[before + place] if place < right else tops[place, 0]
        if follows < 0 or inputs[place] < 0:
            continue
        _remember(pool, -1, inputs[place], follows)
        first = inputs[place - 1] if place else text[before - 2] if before > 1 else -1
        if first >= 0:
            _remember(pool, first, inputs[place], follows)


@dataclass(frozen=True)
class Pooled:
    """The memory of one tenant: the pool of successors, and the rates of right guesses."""

    pool: Pool
    rates: Rates

    @classmethod
    def fresh(cls) -> "Pooled":
        """Return an empty pool. Its pages take no memory before they are written."""
        by_place = [1 / (place + 2) for place in range(NUM_SUCCESSORS)]
        carried = [0.4 / (depth + 1) for depth in range(_DEPTHS)]
        chances = [*carried, *(chance / 2 for chance in carried), *by_place]
        chances += [*(chance / 2 for chance in by_place)]
        return cls(np.zeros((2, POOL_ROWS, 2 + NUM_SUCCESSORS), np.int32), fresh_rates(chances))


def fresh_window() -> Window:
    """Return a window without guesses."""
    return np.zeros(2 + WINDOW, np.int32)


class JacobiGuesser:
    """A guesser for one sequence from the predictions of its last pass and its tenant's earlier passes."""

    name = "jacobi"
    wants_top = 1

    def __init__(self, pooled: Pooled) -> None:
        self._pooled = pooled
        self._window = fresh_window()

    def begin(self, text: GrowingText) -> None:
        """Do nothing: the results of a prompt's rows are not available."""

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Guess from the window and the pool, or else take a token of the text."""
        pooled = self._pooled
        count, order = jacobi_guess(self._window, pooled.pool, pooled.rates, tokens, length, found, chances)
        if count or not length:
            return count, order
        # Only the verifier's prediction after this token counts, so any token is good that differs each time.
        found[0] = tokens[(length * _STRIDE >> 4) % length]
        chances[0] = FILLER_CHANCE
        return 1, 0

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Keep the predictions of a pass, in the window and in the pool."""
        pooled = self._pooled
        jacobi_learn(
            self._window, pooled.pool, pooled.rates, text.tokens, before, text.length, rows.inputs, rows.tops
        )

    def end(self, text: GrowingText) -> None:
        """Do nothing: everything was learnt at each pass."""


class JacobiSource(ChainSource[Pooled]):
    """A source whose sessions share their tenant's pool; each session has its own window."""

    name = "jacobi"
    cost = DraftCost(microseconds=20)

    def __init__(self, most_tenants: int = MAX_TENANTS) -> None:
        super().__init__(Pooled.fresh, most_tenants)

    def guesser(self, learnt: Pooled, reference: Sequence[int] | None) -> JacobiGuesser:
        """Return a session's guesser; it makes no use of a reference."""
        return JacobiGuesser(learnt)
