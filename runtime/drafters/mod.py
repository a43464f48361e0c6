"""llama.cpp's ngram-mod: one table, indexed by a rolling hash of the last n tokens, of what came next.

The table is small and exact keys are not kept: what falls on an entry replaces it, and what is read from it
may be of another context. It serves all of a tenant's requests. As llama.cpp has it: n is 24, the hash is a
linear congruential generator's, text is put in once it is so many tokens longer, and the table is emptied
after three rounds in a row in which less than half of what was proposed was right, and where a request finds
it filled by more than a quarter. Unlike there, what is left of a text is put in at its end, and a draft may
be of any length.
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
"""Text is put in where it is so many tokens longer than where the last n tokens began that were put in."""

LOW = 0.5
LOW_ROUNDS = 3
FULLEST = 0.25
MOST_OWNERS = 8

Table = NDArray[np.int32]
"""[entries]: tokens + 1; 0 is none."""


@compiled("int64(int32[::1], int64, int64, int64)")
def mod_index(text: Tokens, first: int, n: int, entries: int) -> int:
    """The entry of the n tokens from `first` on."""
    mixed = np.uint64(0)
    for place in range(first, first + n):
        mixed = mixed * np.uint64(MULTIPLIER) + np.uint64(text[place])
    return int(mixed % np.uint64(entries))


@compiled("int64(int32[::1], int32[::1], int64, int64, int64)")
def mod_insert(table: Table, text: Tokens, first: int, length: int, n: int) -> int:
    """Put in what follows the n tokens from each place on, from `first` to the last that has a follower in
    `text[:length]`; how many entries were empty before."""
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
    """The candidate for what follows `text[:length]`: 1 where there is one, else 0.

    Its chance is how often there was one that was right.
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
    """Count what would have been guessed since the text had `before` tokens."""
    for length in range(max(before, n), after):
        entry = table[mod_index(text, length - n, n, len(table))]
        if entry:
            rates[0, 0] += entry - 1 == text[length]
            rates[0, 1] += 1


@dataclass(frozen=True)
class ModSettings:
    """How many tokens are hashed, and how many entries the table of a tenant has, of 4 bytes each.

    Raises RequestError for what makes no table.
    """

    n: int = MOD_MATCH
    entries: int = MOD_ENTRIES

    def __post_init__(self) -> None:
        if self.n < 1 or self.entries < 1:
            raise RequestError(f"a table of {self.entries} entries by {self.n} tokens makes no sense")


@dataclass(frozen=True)
class ModFacts:
    """The content of all tables: entries, used entries, and how often a table was cleared."""

    entries: int = 0
    filled: int = 0
    emptied: int = 0

    @property
    def occupancy(self) -> float:
        """The share that is filled."""
        return self.filled / self.entries if self.entries else 0.0


class ModTable:
    """The memory of one tenant."""

    def __init__(self, settings: ModSettings) -> None:
        """Pages of the table that were never written to take no memory."""
        self.n = settings.n
        self.table: Table = np.zeros(settings.entries, np.int32)
        self.rates = fresh_rates([0.5])
        self.filled = 0
        self.emptied = 0

    def insert(self, text: GrowingText, first: int) -> int:
        """Put in a text from place `first` on; from where to go on later."""
        self.filled += mod_insert(self.table, text.tokens, first, text.length, self.n)
        return max(first, text.length - self.n)

    def empty(self, why: str) -> None:
        """Forget all."""
        _log.info("ngram-mod: %d of %d entries are given up: %s", self.filled, len(self.table), why)
        self.table[:] = 0
        self.filled = 0
        self.emptied += 1


class ModGuesser:
    """Guesses for one sequence from its tenant's table."""

    name = "mod"
    wants_top = 0

    def __init__(self, learnt: ModTable) -> None:
        self._learnt = learnt
        self._inserted = 0
        self._low_rounds = 0

    def begin(self, text: GrowingText) -> None:
        """Put in the prompt, into an empty table where it has become too full."""
        learnt = self._learnt
        if learnt.filled > FULLEST * len(learnt.table):
            learnt.empty(f"more than {FULLEST:.0%} are filled")
        self._inserted = learnt.insert(text, 0)
        _log.info("ngram-mod: %d of %d entries are filled", learnt.filled, len(learnt.table))

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Return the token that last followed the last n tokens, or other tokens with the same hash."""
        learnt = self._learnt
        count = mod_candidates(learnt.table, learnt.rates, learnt.n, tokens, length, found, chances)
        return count, learnt.n

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Put in what is new once it is long enough; give up the table where it is wrong again and again."""
        learnt = self._learnt
        mod_learn(learnt.table, learnt.rates, learnt.n, text.tokens, before, text.length)
        if self._inserted + CHUNK < text.length:
            self._inserted = learnt.insert(text, self._inserted)
        proposed = len(outcome.proposed.tokens)
        if proposed:
            self._low_rounds = self._low_rounds + 1 if outcome.accepted < LOW * proposed else 0
            if self._low_rounds == LOW_ROUNDS:
                self._low_rounds = 0
                learnt.empty(f"{LOW_ROUNDS} rounds in a row were wrong for the most part")

    def end(self, text: GrowingText) -> None:
        """Put in what is left."""
        self._inserted = self._learnt.insert(text, self._inserted)


class ModSource(ChainSource[ModTable]):
    """Sessions of one tenant share a table."""

    name = "mod"
    cost = DraftCost(microseconds=20)

    def __init__(self, settings: ModSettings | None = None, most_owners: int = MOST_OWNERS) -> None:
        chosen = settings or ModSettings()
        super().__init__(lambda: ModTable(chosen), most_owners)

    @property
    def facts(self) -> ModFacts:
        """How full the tables are."""
        tables = self._tenants.all
        return ModFacts(
            sum(len(each.table) for each in tables),
            sum(each.filled for each in tables),
            sum(each.emptied for each in tables),
        )

    def guesser(self, learnt: ModTable, reference: Sequence[int] | None) -> ModGuesser:
        """A reference, as another text, is put in before the prompt."""
        if reference:
            learnt.insert(GrowingText(reference), 0)
        return ModGuesser(learnt)
