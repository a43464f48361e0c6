"""The Drafter protocol. One file per drafter beside this one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Draft:
    """A chain of guessed tokens that continues a sequence, with the chance of each.

    `probabilities[i]` estimates that token i is right given that those before it are; in (0, 1].
    """

    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probabilities):
            raise ValueError("a draft needs one probability per token")


@dataclass(frozen=True)
class Outcome:
    """What became of a sequence in one pass.

    `proposed` is the draft that ran, `accepted` how many of its tokens were right, and `committed`
    the tokens that the pass made part of the sequence (accepted ones and the one after them).
    """

    proposed: Draft
    accepted: int
    committed: tuple[int, ...]


class Drafter(Protocol):
    """Proposes drafts for one sequence; one instance per sequence.

    `context` is the whole sequence so far, prompt and output; it only ever grows, and a drafter may
    index just what was added since its last call.
    """

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        """At most `budget` tokens that may follow `context`; an empty draft where nothing fits."""
        ...

    def observe(self, context: Sequence[int], outcome: Outcome) -> None:
        """Learn from a pass; `context` already ends with what was committed."""
        ...
