"""Build drafts from sources that guess one token at a time: a draft is the best guess, repeated."""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits, propose_each
from anespec.runtime.drafters.candidates import MAX_CANDIDATES, Chances
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens, seen_rows

Learnt = TypeVar("Learnt")


class PerTenant(Generic[Learnt]):
    """A memory of type `Learnt` for each of the most recent tenants, never shared between tenants.

    If there are too many, the least recently used one is dropped; open sessions keep using it until they end.
    `of` is safe for use from several threads.
    """

    def __init__(self, fresh: Callable[[], Learnt], most: int) -> None:
        """Keep at most `most` memories; `fresh` makes the memory of a new tenant."""
        self._fresh = fresh
        self._most = most
        self._learnt: OrderedDict[str, Learnt] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._learnt)

    def of(self, tenant: str) -> Learnt:
        """Return the memory of a tenant."""
        with self._guard:
            learnt = self._learnt[tenant] if tenant in self._learnt else self._fresh()
            self._learnt[tenant] = learnt
            self._learnt.move_to_end(tenant)
            while len(self._learnt) > self._most:
                self._learnt.popitem(last=False)
            return learnt

    @property
    def all(self) -> tuple[Learnt, ...]:
        """The memories of all tenants, the least recently used first."""
        return tuple(self._learnt.values())

    def clear(self) -> None:
        """Drop all memories."""
        self._learnt.clear()


class Guesser(Protocol):
    """A guesser of the next token of one sequence, which learns from the sequence."""

    @property
    def name(self) -> str:
        """The source's name in statistics."""
        ...

    @property
    def wants_top(self) -> int:
        """The number of likeliest tokens per row that the guesser learns from."""
        ...

    def begin(self, text: GrowingText) -> None:
        """Learn from the text with which the sequence begins."""
        ...

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Write candidates for the token after `tokens[:length]` to the front of `found` and `chances`.

        Return the number of candidates, and the number of context tokens that they are based on. `found` and
        `chances` have MAX_CANDIDATES entries; a probability in `chances` is in (0, 1]. `tokens` may go
        beyond the text, by the tokens that a chain has guessed so far.
        """
        ...

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Learn from a pass of these rows, before which the text had `before` tokens."""
        ...

    def end(self, text: GrowingText) -> None:
        """Learn from the whole text of a sequence that has ended."""
        ...


class ChainSession:
    """A session that proposes chains.

    The first token is the likeliest candidate, the first among equals. The next one is the likeliest
    candidate after it, and so on until there is no candidate or the budget is used.
    """

    def __init__(self, guesser: Guesser, prompt: Sequence[int]) -> None:
        self._guesser = guesser
        self._text = GrowingText(prompt)
        self._found = np.zeros(MAX_CANDIDATES, np.int32)
        self._chances = np.zeros(MAX_CANDIDATES)
        guesser.begin(self._text)

    @property
    def wants_top(self) -> int:
        """The number of likeliest tokens per row that the guesser learns from."""
        return self._guesser.wants_top

    def propose(self, budget: int) -> Draft:
        """Return a chain of at most `budget` tokens."""
        text, found, chances = self._text, self._found, self._chances
        text.make_room(budget)
        tokens: list[int] = []
        claims: list[float] = []
        rests_on = 0
        for length in range(text.length, text.length + budget):
            count, order = self._guesser.guess(text.tokens, length, found, chances)
            if not count:
                break
            best = int(chances[:count].argmax())
            rests_on = rests_on if tokens else order
            tokens.append(int(found[best]))
            claims.append(float(chances[best]))
            text.tokens[length] = found[best]
        return Draft(tuple(tokens), tuple(claims), self._guesser.name, rests_on) if tokens else Draft()

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Append the committed tokens to the text, and let the guesser learn from the pass."""
        text = self._text
        before = text.length
        last = int(text.tokens[before - 1]) if before else -1
        seen = seen_rows(last, committed, outcome, rows if self.wants_top else TopKLogits(()), self.wants_top)
        text.append(committed)
        self._guesser.learn(text, before, outcome, seen)

    def close(self) -> None:
        """Let the guesser learn from the whole text."""
        self._guesser.end(self._text)


class ChainSource(ABC, Generic[Learnt]):
    """A source whose sessions have one guesser each; the sessions of one tenant share one memory."""

    name: ClassVar[str]
    cost: ClassVar[DraftCost]

    def __init__(self, fresh: Callable[[], Learnt], most_tenants: int) -> None:
        """Keep the memories of `most_owners` tenants; `fresh` makes the memory of a new tenant."""
        self._tenants = PerTenant(fresh, most_tenants)

    @abstractmethod
    def guesser(self, learnt: Learnt, reference: Sequence[int] | None) -> Guesser:
        """Return the guesser of a new session; `reference` is text that the output may repeat."""

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> ChainSession:
        """Open a session of a tenant."""
        return ChainSession(self.guesser(self._tenants.of(tenant), reference), prompt)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Ask the sessions one after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Drop the memories of all tenants."""
        self._tenants.clear()
