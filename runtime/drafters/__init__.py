"""Define the protocol of draft sources; each source has a module or a folder here.

A process has one source. It opens a session for every sequence and learns from all sequences, for each tenant
separately. It is not trusted: the engine verifies its proposals, and continues without it if it fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from anespec.runtime.passes import Candidate, LogitsRequest, RowLogits
from anespec.runtime.sampling.row_logits import row_logits

REFERENCE = "reference"
"""The name in statistics for drafts that any source copied from the request's reference."""


@dataclass(frozen=True)
class Draft:
    """A chain of guessed tokens that continues a sequence, with their probabilities.

    `probabilities[i]`, in (0, 1], estimates that token i is right if the tokens before it are. `source` is
    the source's name. `order` is the number of context tokens that the first guess is based on. `remembered`
    says whether the guess is based mostly on earlier requests. `weighed_seconds` is the part of the
    proposal's time that the source itself has compared with what it brings.
    """

    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()
    source: str = ""
    order: int = 0
    remembered: bool = False
    weighed_seconds: float = 0.0

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.probabilities):
            raise ValueError("a draft needs one probability per token")

    def first(self, count: int) -> "Draft":
        """Return the draft of the first `count` tokens."""
        if count >= len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[:count], probabilities=self.probabilities[:count])

    def after(self, count: int) -> "Draft":
        """Return the draft of the tokens after the first `count`."""
        return replace(self, tokens=self.tokens[count:], probabilities=self.probabilities[count:])


@dataclass(frozen=True)
class Outcome:
    """The outcome of a draft: `proposed` is the part that ran, `accepted` the number of right tokens."""

    proposed: Draft = field(default_factory=Draft)
    accepted: int = 0


class TopKLogits:
    """The likeliest tokens of the rows that a pass ran for a sequence, computed on demand.

    Row 0 belongs to the last token before the committed ones. Row i belongs to token i - 1 of those that ran
    after it: forced tokens, then the draft. So the first rows gave the committed tokens; the other rows show
    what would have followed a wrong guess.
    """

    def __init__(self, rows: Sequence[RowLogits]) -> None:
        """Take the results of the rows, in order."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def top(self, offset: int, count: int) -> tuple[Candidate, ...]:
        """Return the `count` likeliest tokens of row number `offset`, likeliest first.

        There are fewer if the session's `wants_top` is smaller and the sampler did not need all logits.
        """
        row = self._rows[offset]
        if len(row.top) < count and row.logits is not None:
            return row_logits(row.logits, LogitsRequest(top=count)).top
        return row.top[:count]


@dataclass(frozen=True)
class DraftCost:
    """The time of one proposal, and what a source runs on other threads.

    With `off_thread` proposals are made on a thread of their own. With `opens_aside` sessions of long texts
    take long to open and close, and may do so on another thread while other sessions make proposals.
    """

    microseconds: float = 0.0
    off_thread: bool = False
    opens_aside: bool = False


class DraftSession(Protocol):
    """A session proposes drafts for one sequence."""

    @property
    def wants_top(self) -> int:
        """The number of likeliest tokens that `observe` needs of every row that ran; 0 for none."""
        ...

    def propose(self, budget: int) -> Draft:
        """Return a draft of at most `budget` tokens; it is empty if the session has no guess."""
        ...

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Learn from a pass: `committed` tokens (the accepted ones and one more) continue the sequence.

        `rows` are empty for tokens that were committed while the session was opened or rested.
        """
        ...

    def close(self) -> None:
        """End the session; the sequence has ended, or continues without it."""
        ...


class DraftSource(Protocol):
    """A source opens sessions, and makes proposals for many of them at once. Calls come one at a time."""

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
        """Open a session for a sequence that begins with `prompt`.

        What the session learns is used for `tenant` alone. `reference` is text that the output may repeat.
        """
        ...

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return a draft within its budget for each of these (session, budget) pairs, in their order."""
        ...

    def close(self) -> None:
        """Write what is to be stored, and release all resources; a second call does nothing."""
        ...


@runtime_checkable
class WeighsTime(Protocol):
    """A source whose proposals take long enough to be weighed against passes."""

    def weigh(self, token_seconds: float) -> None:
        """Take the current time in seconds of a token without drafts, before a proposal."""
        ...


def weigh(source: DraftSource, token_seconds: float | None) -> None:
    """Tell a source that weighs its time what a token without drafts takes, if that is known."""
    if token_seconds and isinstance(source, WeighsTime):
        source.weigh(token_seconds)


def propose_each(asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
    """Ask the sessions one after another; implements `DraftSource.propose` for most sources."""
    return [session.propose(budget) for session, budget in asks]
