"""Draft sessions for tests, right ones and ones that are wrong in every way, and their source."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits, propose_each


class OracleSession:
    """Knows the text; every `wrong_each`-th token that it proposes is wrong (never with 0).

    `faults` says where the engine broke a promise; an exception would only cost the session its turn.
    """

    def __init__(self, whole: Sequence[int], known: int, wrong_each: int = 0, wants_top: int = 0) -> None:
        self.whole = [*whole]
        self.known = known
        self.wrong_each = wrong_each
        self.wants_top = wants_top
        self.proposed = 0
        self.outcomes: list[Outcome] = []
        self.tops: list[int] = []
        self.after_miss: list[tuple[tuple[int, ...], int]] = []
        self.closed = 0
        self.faults: list[str] = []

    def propose(self, budget: int) -> Draft:
        tokens = []
        for token in self.whole[self.known : self.known + budget]:
            self.proposed += 1
            wrong = self.wrong_each and self.proposed % self.wrong_each == 0
            tokens.append(token ^ 1 if wrong else token)
        return Draft(tuple(tokens), (0.9,) * len(tokens), "oracle", 3)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        right = outcome.proposed.tokens[: outcome.accepted]
        if right != tuple(committed[: outcome.accepted]):
            self.faults.append(f"{outcome} committed {committed}")
        if len(rows) < max(len(committed), 1 + len(outcome.proposed.tokens)):
            self.faults.append(f"{len(rows)} rows for {len(committed)} tokens")
        if self.wants_top:
            likeliest = [rows.top(i, self.wants_top)[0].token for i in range(len(rows))]
            self.tops += likeliest[: len(committed)]
            for i in range(len(committed), len(rows)):
                path = (*self.whole[: self.known], *outcome.proposed.tokens[:i])
                self.after_miss.append((path, likeliest[i]))
        self.known += len(committed)
        self.outcomes.append(outcome)

    def close(self) -> None:
        self.closed += 1


class HostileSession:
    """Random tokens, unknown tokens, too many of them, nonsense probabilities, and failures."""

    wants_top = 0

    def __init__(self, seed: int, vocabulary: int, raises: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.raises = raises

    def propose(self, budget: int) -> Draft:
        if self.raises and self.random.random() < 0.2:
            raise RuntimeError("no draft today")
        low, high = (0, self.vocabulary) if self.random.random() < 0.7 else (-3, self.vocabulary + 3)
        count = int(self.random.integers(0, budget + 3))
        tokens = tuple(int(token) for token in self.random.integers(low, high, count))
        chances = self.random.choice([0.5, 1.0, 0.0, -1.0, 7.0, float("nan"), float("inf")], count)
        return Draft(tokens, tuple(chances.tolist()), "hostile")

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        if self.raises and self.random.random() < 0.1:
            raise ValueError("no lesson either")

    def close(self) -> None:
        if self.raises:
            raise OSError("it cannot even end")


class SenselessSession:
    """Returns something that is not a draft at all."""

    wants_top = 0

    def propose(self, budget: int) -> Any:
        return None

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Learns nothing."""

    def close(self) -> None:
        """Nothing to end."""


class SourceOf:
    """Sessions made by a function of tenant and prompt; `slow` is called before every proposal."""

    name = "test"

    def __init__(
        self,
        make: Callable[[str, Sequence[int]], DraftSession],
        slow: Callable[[], None] = lambda: None,
        off_thread: bool = False,
    ) -> None:
        self.make = make
        self.slow = slow
        self.cost = DraftCost(off_thread=off_thread)
        self.opened: list[tuple[str, tuple[int, ...]]] = []
        self.sessions: list[DraftSession] = []

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        self.opened.append((tenant, tuple(prompt)))
        self.sessions.append(self.make(tenant, prompt))
        return self.sessions[-1]

    @property
    def faults(self) -> list[str]:
        """Promises broken towards any session."""
        return [fault for session in self.sessions for fault in getattr(session, "faults", [])]

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        self.slow()
        return propose_each(asks)

    def close(self) -> None:
        """Nothing is held."""


class SourceByReference(SourceOf):
    """Sessions made by a function of the reference's only token, as text: a tenant may have many requests."""

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        assert reference is not None
        return super().open(str(reference[0]), prompt)


def oracle_source(prompt: Sequence[int], text: Sequence[int], wrong_each: int = 0) -> SourceOf:
    """A source that knows one text."""
    return SourceOf(lambda _, known: OracleSession([*prompt, *text], len(known), wrong_each))
