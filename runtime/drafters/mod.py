"""Draft as llama.cpp's ngram-mod does: a table maps a rolling hash of the last n tokens to the next token.

The table is small and stores no keys: a new entry replaces an old one with the same hash, and a token that is
read may have followed another context. The table serves all requests of a tenant. As in llama.cpp, n is 24,
the hash is that of a linear congruential generator, and text is inserted in chunks. The table is emptied
after three passes in a row in which less than half of the draft was right, and when a request begins and more
than a quarter of it is filled. Unlike llama.cpp, the rest of a text is inserted at its end, and a draft may
have any length.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters import DraftCost, Outcome
from anespec.runtime.drafters.candidates import Chances, Rates, fresh_rates
from anespec.runtime.drafters.chains import ChainSource
from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens
from anespec.runtime.options import MOD_ENTRIES, MOD_MATCH
from anespec.system.errors import RequestError

_log = logging.getLogger(__name__)

MULTIPLIER = 6364136223846793005
CHUNK = 32
"""Text is inserted once it is more than this number of tokens longer than the inserted part."""

LOW_ACCEPTANCE = 0.5
LOW_ROUNDS = 3
MAX_FILLED = 0.25
MAX_TENANTS = 8

Table = NDArray[np.int32]
"""[entries]: the next token + 1; 0 is an empty entry."""


@compiled("int64(int32[::1], int64, int64, int64)")
def mod_index(text: Tokens, first: int, n: int, entries: int) -> int:
    """Return the entry of the n tokens from `first` on."""
    mixed = np.uint64(0)
    for place in range(first, first + n):
        mixed = mixed * np.uint64(MULTIPLIER) + np.uint64(text[place])
    return int(mixed % np.uint64(entries))


@compiled("int64(int32[::1], int32[::1], int64, int64, int64)")
def mod_insert(table: Table, text: Tokens, first: int, length: int, n: int) -> int:
    """Insert the token after the n tokens from each place on, beginning with `first`, within `text[:length]`.

    Return how many of the entries were empty before.
    """
    filled = 0
    for place in range(first, length - n):
        entry = mod_index(text, place, n, len(table))
        filled += table[entry] == 0
        table[entry] = text[place + n] + 1
    return filled


@compiled("int64(int32[::1], float64[:,::1], int64, int32[::1], int64, int32[::1], float64[::1])")
def mod_candidates(
    table: Table, rates: Rates, n: int, text: Tokens, length: int, found: Tokens, chances: Chances
) -> int:
    """Write the candidate after `text[:length]` and its probability to `found` and `chances`.

    Return 1 if there is one, else 0. The probability is the share of earlier candidates that were right.
    """
    if len(table) == 0 or length < n:
        return 0
    entry = table[mod_index(text, length - n, n, len(table))]
    if entry == 0:
        return 0
    found[0] = entry - 1
    chances[0] = rates[0, 0] / rates[0, 1]
    return 1


@compiled("void(int32[::1], float64[:,::1], int64, int32[::1], int64, int64)")
def mod_learn(table: Table, rates: Rates, n: int, text: Tokens, before: int, after: int) -> None:
    """Count how many candidates from place `before` to `after` there were, and how many were right."""
    for length in range(max(before, n), after):
        entry = table[mod_index(text, length - n, n, len(table))]
        if entry:
            rates[0, 0] += entry - 1 == text[length]
            rates[0, 1] += 1


@dataclass(frozen=True)
class ModSettings:
    """The number of tokens that are hashed, and the entries of a tenant's table, of 4 bytes each.

    Raises:
        RequestError: a number is less than 1.
    """

    n: int = MOD_MATCH
    entries: int = MOD_ENTRIES

    def __post_init__(self) -> None:
        if self.n < 1 or self.entries < 1:
            raise RequestError(
                f"ngram-mod has {self.entries} entries by {self.n} tokens; both must be at least 1"
            )


@dataclass(frozen=True)
class ModFacts:
    """The content of all tables: entries, used entries, and how often a table was cleared."""

    entries: int = 0
    filled: int = 0
    emptied: int = 0

    @property
    def occupancy(self) -> float:
        """The share of used entries."""
        return self.filled / self.entries if self.entries else 0.0


class ModTable:
    """The table of one tenant."""

    def __init__(self, settings: ModSettings) -> None:
        """Begin empty; the table's pages take no memory before they are written."""
        self.n = settings.n
        self.table: Table = np.zeros(settings.entries, np.int32)
        self.rates = fresh_rates([0.5])
        self.filled = 0
        self.emptied = 0

    def insert(self, text: GrowingText, first: int) -> int:
        """Insert a text from place `first` on; return the place from which to insert later."""
        self.filled += mod_insert(self.table, text.tokens, first, text.length, self.n)
        return max(first, text.length - self.n)

    def empty(self, why: str) -> None:
        """Clear all entries; `why` is logged."""
        _log.info("ngram-mod: %d of %d entries are cleared: %s", self.filled, len(self.table), why)
        self.table[:] = 0
        self.filled = 0
        self.emptied += 1


class ModGuesser:
    """A guesser for one sequence from its tenant's table."""

    name = "mod"
    wants_top = 0

    def __init__(self, learnt: ModTable) -> None:
        self._learnt = learnt
        self._inserted = 0
        self._low_rounds = 0

    def begin(self, text: GrowingText) -> None:
        """Insert the prompt, after clearing the table if it is too full."""
        learnt = self._learnt
        if learnt.filled > MAX_FILLED * len(learnt.table):
            learnt.empty(f"more than {MAX_FILLED:.0%} are filled")
        self._inserted = learnt.insert(text, 0)
        _log.info("ngram-mod: %d of %d entries are filled", learnt.filled, len(learnt.table))

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Guess the token that last followed the last n tokens, or n other tokens with the same hash."""
        learnt = self._learnt
        count = mod_candidates(learnt.table, learnt.rates, learnt.n, tokens, length, found, chances)
        return count, learnt.n

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Insert new text once it is long enough; clear the table after LOW_ROUNDS bad drafts in a row."""
        learnt = self._learnt
        mod_learn(learnt.table, learnt.rates, learnt.n, text.tokens, before, text.length)
        if self._inserted + CHUNK < text.length:
            self._inserted = learnt.insert(text, self._inserted)
        proposed = len(outcome.proposed.tokens)
        if proposed:
            self._low_rounds = self._low_rounds + 1 if outcome.accepted < LOW_ACCEPTANCE * proposed else 0
            if self._low_rounds == LOW_ROUNDS:
                self._low_rounds = 0
                learnt.empty(f"{LOW_ROUNDS} drafts in a row were mostly wrong")

    def end(self, text: GrowingText) -> None:
        """Insert the rest of the text."""
        self._inserted = self._learnt.insert(text, self._inserted)


class ModSource(ChainSource[ModTable]):
    """A source whose sessions share their tenant's table."""

    name = "mod"
    cost = DraftCost(microseconds=20)

    def __init__(self, settings: ModSettings | None = None, most_tenants: int = MAX_TENANTS) -> None:
        self.settings = settings or ModSettings()
        super().__init__(lambda: ModTable(self.settings), most_tenants)

    @property
    def facts(self) -> ModFacts:
        """The use of all tables."""
        return _facts(self._tenants.all)

    def facts_of(self, tenant: str) -> ModFacts:
        """Return the use of a tenant's table."""
        return _facts([self._tenants.of(tenant)])

    def guesser(self, learnt: ModTable, reference: Sequence[int] | None) -> ModGuesser:
        """Return a session's guesser, after inserting the reference as a text of its own."""
        if reference:
            learnt.insert(GrowingText(reference), 0)
        return ModGuesser(learnt)


def _facts(tables: Sequence[ModTable]) -> ModFacts:
    return ModFacts(
        sum(len(each.table) for each in tables),
        sum(each.filled for each in tables),
        sum(each.emptied for each in tables),
    )
