"""Drafts from the text that is to come, some of them spoilt: some are right however a text is sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, RowTops, propose_each


@dataclass
class _KnowingSession:
    """Proposes what is known to come, some of it spoilt."""

    known: Sequence[int]
    right: float
    vocabulary: int
    rng: np.random.Generator
    done: int = 0
    wants_top: int = 0

    def propose(self, budget: int) -> Draft:
        """The next tokens, each wrong with a chance of 1 - `right`."""
        tokens = [
            token if self.rng.random() < self.right else int(self.rng.integers(self.vocabulary))
            for token in self.known[self.done : self.done + int(self.rng.integers(budget + 1))]
        ]
        return Draft(tuple(tokens), (self.right,) * len(tokens), "knowing")

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: RowTops) -> None:
        """Go on behind what was committed."""
        self.done += len(committed)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class KnowingSource:
    """Drafts from texts that are to come, with errors: some are right at any temperature.

    The reference of a request is the number of its text.
    """

    texts: Sequence[Sequence[int]]
    vocabulary: int
    rng: np.random.Generator
    right: float = 0.8
    name: str = "knowing"
    cost: DraftCost = field(default_factory=lambda: DraftCost(microseconds=100))

    def open(self, owner: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> DraftSession:
        """A session that knows the text."""
        known = self.texts[reference[0]] if reference else ()
        return _KnowingSession(known, self.right, self.vocabulary, self.rng)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Nothing is held."""
