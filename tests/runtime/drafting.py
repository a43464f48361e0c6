"""Drafters for tests: one that is always right, and ones that are wrong in every way."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from anespec.runtime.drafters import Draft, Outcome


class OracleDrafter:
    """Knows the text; every `wrong_each`-th token that it proposes is wrong (never with 0)."""

    def __init__(self, prompt: Sequence[int], text: Sequence[int], wrong_each: int = 0) -> None:
        self.whole = [*prompt, *text]
        self.wrong_each = wrong_each
        self.proposed = 0
        self.outcomes: list[Outcome] = []

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        tokens = []
        for token in self.whole[len(context) : len(context) + budget]:
            self.proposed += 1
            wrong = self.wrong_each and self.proposed % self.wrong_each == 0
            tokens.append(token ^ 1 if wrong else token)
        return Draft(tuple(tokens), (0.9,) * len(tokens))

    def observe(self, context: Sequence[int], outcome: Outcome) -> None:
        assert tuple(context[len(context) - len(outcome.committed) :]) == outcome.committed
        assert outcome.proposed.tokens[: outcome.accepted] == outcome.committed[: outcome.accepted]
        self.outcomes.append(outcome)


class HostileDrafter:
    """Random tokens, unknown tokens, too many of them, nonsense probabilities, and vandalism."""

    def __init__(self, seed: int, vocabulary: int, raises: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.raises = raises

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        if self.raises and self.random.random() < 0.2:
            raise RuntimeError("no draft today")
        low, high = (0, self.vocabulary) if self.random.random() < 0.7 else (-3, self.vocabulary + 3)
        count = int(self.random.integers(0, budget + 3))
        tokens = tuple(int(token) for token in self.random.integers(low, high, count))
        chances = self.random.choice([0.5, 1.0, 0.0, -1.0, 7.0, float("nan"), float("inf")], count)
        if isinstance(context, list):
            context[0] = -1
        return Draft(tokens, tuple(chances.tolist()))

    def observe(self, context: Sequence[int], outcome: Outcome) -> None:
        if self.raises and self.random.random() < 0.1:
            raise ValueError("no lesson either")


class SenselessDrafter:
    """Returns something that is not a draft at all."""

    def propose(self, context: Sequence[int], budget: int) -> Any:
        return None

    def observe(self, context: Sequence[int], outcome: Outcome) -> None:
        raise AssertionError("dismissed before")
