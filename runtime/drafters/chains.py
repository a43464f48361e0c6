"""Sources that guess one token at a time: a draft is the best guess, over and over."""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits, propose_each
from anespec.runtime.drafters.candidates import MOST_CANDIDATES, Chances
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens, seen_rows

Learnt = TypeVar("Learnt")


class PerOwner(Generic[Learnt]):
    """One `Learnt` for each of the most recent tenants, never shared between tenants.

    If there are too many, the least recently used is dropped; sessions that hold it keep it until they end.
    Sessions may be opened on several threads.
    """

    def __init__(self, fresh: Callable[[], Learnt], most: int) -> None:
        """`fresh` makes what a new tenant begins with."""
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
        """Forget all."""
        self._learnt.clear()


class Guesser(Protocol):
    """Guesses the next token of one sequence, and learns from it."""

    @property
    def name(self) -> str:
        """The source's name in statistics."""
        ...

    @property
    def wants_top(self) -> int:
        """The number of likeliest tokens of every row that it learns from."""
        ...

    def begin(self, text: GrowingText) -> None:
        """The sequence begins with this text."""
        ...

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Candidates for what follows `tokens[:length]`: how many, and how many tokens they rest on.

        They are written to the front of `found` and `chances`, arrays of MOST_CANDIDATES; a chance is in
        (0, 1]. `tokens` may be longer than the text by what a chain has guessed so far.
        """
        ...

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """The text has grown from `before` tokens, by a pass of these rows."""
        ...

    def end(self, text: GrowingText) -> None:
        """The sequence has ended with this text."""
        ...


class ChainSession:
    """Proposes a chain: the candidate of the highest chance, the first of equals, with it in the text the
    next one, and so on, until there is none."""

    def __init__(self, guesser: Guesser, prompt: Sequence[int]) -> None:
        self._guesser = guesser
        self._text = GrowingText(prompt)
        self._found = np.zeros(MOST_CANDIDATES, np.int32)
        self._chances = np.zeros(MOST_CANDIDATES)
        guesser.begin(self._text)

    @property
    def wants_top(self) -> int:
        """The number of likeliest tokens of every row that the guesser learns from."""
        return self._guesser.wants_top

    def propose(self, budget: int) -> Draft:
        """At most `budget` tokens."""
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
        """Let the text go on, and the guesser learn from the pass."""
        text = self._text
        before = text.length
        last = int(text.tokens[before - 1]) if before else -1
        seen = seen_rows(last, committed, outcome, rows if self.wants_top else TopKLogits(()), self.wants_top)
        text.append(committed)
        self._guesser.learn(text, before, outcome, seen)

    def close(self) -> None:
        """Tell the guesser that the sequence is over."""
        self._guesser.end(self._text)


class ChainSource(ABC, Generic[Learnt]):
    """A source whose sessions have a guesser each; those of one tenant share what is learnt."""

    name: ClassVar[str]
    cost: ClassVar[DraftCost]

    def __init__(self, fresh: Callable[[], Learnt], most_owners: int) -> None:
        """`fresh` makes what a new tenant begins with."""
        self._tenants = PerOwner(fresh, most_owners)

    @abstractmethod
    def guesser(self, learnt: Learnt, reference: Sequence[int] | None) -> Guesser:
        """Return the guesser of a new session; `reference` is text that the output may repeat."""

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> ChainSession:
        """Open a session of a tenant."""
        return ChainSession(self.guesser(self._tenants.of(tenant), reference), prompt)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Forget all."""
        self._tenants.clear()
