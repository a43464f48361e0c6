"""The DraftSource protocol.

There is one file per source next to this one.

There is one source per process. It opens a session for every sequence and learns from all of them, apart by
tenant. It is never trusted: the engine verifies its proposals, and continues without it if it fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from anespec.runtime.passes import Candidate, LogitsRequest, RowLogits
from anespec.runtime.sampling.row_logits import row_logits

REFERENCE = "reference"
"""The source's name in statistics for drafts that were copied from the request's reference, by any source."""


@dataclass(frozen=True)
class Draft:
    """A chain of guessed tokens that continues a sequence, with the chance of each.

    `probabilities[i]` estimates that token i is right given that those before it are; in (0, 1]. `source`
    names the source, `order` how many tokens of context the first guess rests on; `remembered` that earlier
    requests said most for it.
    """

    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    source: str = ""
    order: int = 0
    remembered: bool = False

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probabilities):
            raise ValueError("a draft needs one probability per token")

    def first(self, count: int) -> "Draft":
        """The first `count` tokens."""
        if count >= len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[:count], probabilities=self.probabilities[:count])

    def after(self, count: int) -> "Draft":
        """The tokens behind the first `count`."""
        return replace(self, tokens=self.tokens[count:], probabilities=self.probabilities[count:])


@dataclass(frozen=True)
class Outcome:
    """The outcome of a draft: `proposed` is the part that ran, `accepted` the number of right tokens."""

    proposed: Draft = field(default_factory=Draft)
    accepted: int = 0


class TopKLogits:
    """The likeliest tokens of the rows that a pass ran for a sequence, found when asked for.

    Row 0 is that of the last token before what was committed, row i that of token i - 1 of what ran behind
    it: forced tokens, then the draft. So the first rows are those that the committed tokens came from;
    those beyond say what would have followed a wrong guess.
    """

    def __init__(self, rows: Sequence[RowLogits]) -> None:
        """The rows in their order."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def top(self, offset: int, count: int) -> tuple[Candidate, ...]:
        """The `count` likeliest tokens of row number `offset`, likeliest first.

        Fewer where the session's `wants_top` asked for fewer and the sampler did not need the whole row.
        """
        row = self._rows[offset]
        if len(row.top) < count and row.logits is not None:
            return row_logits(row.logits, LogitsRequest(top=count)).top
        return row.top[:count]


@dataclass(frozen=True)
class DraftCost:
    """The time of one proposal, and whether proposals need a separate thread.

    `opens_aside`: sessions of long texts take long to open and to close, and may be on another thread while
    others are asked.
    """

    microseconds: float = 0.0
    off_thread: bool = False
    opens_aside: bool = False


class DraftSession(Protocol):
    """Proposes drafts for one sequence."""

    @property
    def wants_top(self) -> int:
        """The number of likeliest tokens that `observe` needs of every row that ran; 0 for none."""
        ...

    def propose(self, budget: int) -> Draft:
        """At most `budget` tokens that may follow; an empty draft where nothing fits."""
        ...

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Learn from a pass: the sequence goes on with `committed`, what was accepted and one token more.

        Of what was committed while the session was opened aside there are no `rows`.
        """
        ...

    def close(self) -> None:
        """The sequence has ended, or the session is given up."""
        ...


class DraftSource(Protocol):
    """Opens sessions and asks many of them at once. Calls come one at a time."""

    @property
    def name(self) -> str:
        """The name in statistics."""
        ...

    @property
    def cost(self) -> DraftCost:
        """The time of a proposal."""
        ...

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        """A session for a sequence that begins with `prompt`.

        What is learnt stays with `tenant`. `reference` is text that the output may repeat.
        """
        ...

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """A draft within its budget for each of these sessions, in their order."""
        ...

    def close(self) -> None:
        """Release what the source holds, and write what is to last; called again it does nothing."""
        ...


def propose_each(asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
    """`DraftSource.propose` of a source that gains nothing from asking many at once."""
    return [session.propose(budget) for session, budget in asks]
