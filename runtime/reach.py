"""Choose how many tokens ahead a session guesses: a proposal takes time, too."""

from collections.abc import Sequence
from dataclasses import dataclass


def told(guesses: Sequence[int], committed: Sequence[int]) -> tuple[int, int]:
    """The number of guesses that the committed tokens verify, and how many of them were right up to the first
    wrong one."""
    pairs = list(zip(guesses, committed, strict=False))
    right = next((place for place, (guess, token) in enumerate(pairs) if guess != token), len(pairs))
    return len(pairs), right


@dataclass
class Reach:
    """Request at least `least` tokens. A source's time for more is spent only if a sequence's drafts were
    right that far: twice as many after a draft that was right to its end."""

    least: int
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = max(self.tokens, self.least)

    def learn(self, known: int, right: int) -> None:
        """Of a draft so many tokens are known to be right or wrong, and so many of them were right."""
        if known and right == known:
            self.tokens = max(self.tokens, 2 * known)
        elif known:
            self.tokens = max(self.least, 2 * right)
