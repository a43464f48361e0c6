"""Mix as a draft source: what this text and earlier ones say, weighed by what was right."""

from collections.abc import Sequence

import numpy as np

from anespec.runtime.drafters import (
    REFERENCE,
    Draft,
    DraftCost,
    DraftSession,
    Outcome,
    TopKLogits,
    propose_each,
)
from anespec.runtime.drafters.compiled import direct
from anespec.runtime.drafters.memory.learner import Memory, TenantMemoryView
from anespec.runtime.drafters.mix.layout import (
    BUCKET,
    CONTEXTS,
    NODE_BYTES,
    NODE_WORDS,
    Text,
    Words,
    view_image,
)
from anespec.runtime.drafters.mix.nodes import WORD_COLUMNS, word_rows
from anespec.runtime.drafters.mix.others import SPEAKERS, Others, no_others
from anespec.runtime.drafters.mix.pointer import LENGTHS
from anespec.runtime.drafters.mix.scratch import BEST, LONGEST_CHAIN, ORDER, SPEAKER, fresh_scratch
from anespec.runtime.drafters.mix.state import AT, STATE
from anespec.runtime.drafters.mix.walk import (
    OPENING_TOKENS,
    begin_answer,
    begin_text,
    index_text,
    learn_answer,
    propose_chain,
)
from anespec.runtime.drafters.texts import GrowingText

NODES_PER_TOKEN = 20
"""Rows, of which a token takes a context's each at most: buckets are then seldom full."""
ROOM = 512
"""Tokens that a text may grow by at first."""


class TextTables:
    """A text, its state, and its nodes, words and matches.

    If the text outgrows the arrays, they are replaced by arrays of twice the size, and the text is indexed
    again.
    """

    def __init__(self, traits: Words, prompt: Sequence[int], reference: Sequence[int]) -> None:
        """The reference is indexed before the prompt, as text that came before."""
        self._traits = traits
        self._opening = np.array(prompt[:OPENING_TOKENS], np.int32)
        self.reference_end = len(reference)
        self._answer = len(reference) + len(prompt)
        self.text = GrowingText([*reference, *prompt])
        self._build()

    @property
    def answer(self) -> int:
        """The index at which the answer begins."""
        return self._answer

    def make_room(self, tokens: int) -> None:
        """See to it that the text may go on by so many tokens."""
        self.text.make_room(tokens)
        if self.text.length + tokens > self._room:
            self._build()

    def _build(self) -> None:
        length = self.text.length
        self._room = 2 * length if length > self._answer else length + max(ROOM, length // 2)
        rows = -(-self._room * NODES_PER_TOKEN // BUCKET) * BUCKET
        self._octets = np.zeros((rows, NODE_BYTES), np.uint8)
        self._nodes = self._octets.view(np.int32).reshape(rows, NODE_WORDS)
        self._words = np.zeros((word_rows(self._room), WORD_COLUMNS), np.int32)
        self._heads = np.zeros((len(LENGTHS), word_rows(self._room) // 2), np.int32)
        self.state = np.zeros(STATE, np.int64)
        begin_text(self.state, self._opening, len(self._opening), self._words, self._traits)
        self.index(min(length, self._answer))
        begin_answer(self.state)
        self.index(length)

    @property
    def arrays(self) -> Text:
        """As compiled functions take it; others after the text grew, or room was made."""
        return Text(self.text.tokens, self.state, self._nodes, self._octets, self._words, self._heads)

    def index(self, end: int) -> None:
        """Index the text up to `end`, learning no weights."""
        index_text(self.arrays, end, self._traits)


_propose = direct(propose_chain)
_learn = direct(learn_answer)


class MixSource:
    """Sessions that share their tenant's memory: what followed what, and how to weigh it."""

    name = "mix"
    cost = DraftCost(microseconds=20, opens_aside=True)

    def __init__(self, traits: Words, memory: Memory) -> None:
        """`traits`: see traits.py. The memory is closed with the source."""
        self._traits = traits
        self._memory = memory

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "MixSession":
        """A session that has indexed reference and prompt."""
        tables = TextTables(self._traits, prompt, reference or ())
        return MixSession(self._traits, self._memory.of(tenant), tables, no_others())

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()


class MixSession:
    """Proposes the best candidate, then what is best behind it, and so on; learns at every pass."""

    wants_top = 0

    def __init__(
        self, traits: Words, remembered: TenantMemoryView, tables: TextTables, others: Others
    ) -> None:
        self._traits = traits
        self._remembered = remembered
        self._image = view_image(remembered.image)
        self._tables = tables
        # A separate one: earlier requests are learnt on any thread that opens a session.
        self._scratch = fresh_scratch()
        self._others = others
        self._closed = False

    def propose(self, budget: int) -> Draft:
        """At most `budget` tokens; nothing is learnt by it."""
        budget = min(budget, LONGEST_CHAIN)
        if budget < 1:
            return Draft()
        scratch, text = self._scratch, self._tables.text
        text.make_room(budget)
        arrays = self._tables.arrays
        with self._remembered.lock:
            count = _propose(budget, arrays, self._image, self._others, self._traits, scratch)
        if not count:
            return Draft()
        tokens = tuple(text.tokens[text.length : text.length + count].tolist())
        claims = tuple(scratch.claims[:count].tolist())
        remembered = CONTEXTS <= int(scratch.marks[SPEAKER]) < 2 * CONTEXTS
        return Draft(tokens, claims, self._speaker(), int(scratch.marks[ORDER]), remembered)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Let the text go on, and learn from each token."""
        tables = self._tables
        tables.make_room(len(committed))
        tables.text.append(committed)
        arrays = tables.arrays
        with self._remembered.lock:
            _learn(tables.text.length, arrays, self._image, self._others, self._traits, self._scratch)

    def close(self) -> None:
        """Fold the request into its tenant's memory."""
        if self._closed:
            return
        self._closed = True
        tables = self._tables
        begin = tables.reference_end
        text = tables.text.tokens[begin : tables.text.length].copy()
        self._remembered.fold(text, tables.answer - begin)

    def _speaker(self) -> str:
        """The input that contributed most to the first token of the last proposal."""
        marks, at = self._scratch.marks, self._tables.state[AT]
        if 0 <= at < self._tables.reference_end and marks[BEST] == 0:
            return REFERENCE
        return SPEAKERS.get(int(marks[SPEAKER]), MixSource.name)
