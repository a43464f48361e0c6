"""Draft with mix: predict from contexts of this text and of earlier requests, weighted by their accuracy."""

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
from anespec.runtime.drafters.mix.others import INPUT_SOURCES, Others, no_others
from anespec.runtime.drafters.mix.pointer import LENGTHS
from anespec.runtime.drafters.mix.scratch import BEST, LONGEST_CHAIN, ORDER, TOP_INPUT, fresh_scratch
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
"""The nodes that are allocated per token. A token uses at most one for each context, so buckets are seldom
full."""

INITIAL_ROOM = 512
"""The least number of tokens that a text may grow by before its arrays are replaced."""


class TextTables:
    """A text with its state, nodes, words and matches.

    If the text outgrows the arrays, they are replaced by larger ones, and the text is indexed again.
    """

    def __init__(self, traits: Words, prompt: Sequence[int], reference: Sequence[int]) -> None:
        """Index the reference, as earlier text, and then the prompt."""
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
        """Replace the arrays by larger ones if the text cannot grow by so many tokens."""
        self.text.make_room(tokens)
        if self.text.length + tokens > self._room:
            self._build()

    def _build(self) -> None:
        length = self.text.length
        self._room = 2 * length if length > self._answer else length + max(INITIAL_ROOM, length // 2)
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
        """The arrays for compiled functions; they change when the text grows or room is made."""
        return Text(self.text.tokens, self.state, self._nodes, self._octets, self._words, self._heads)

    def index(self, end: int) -> None:
        """Index the text up to `end`, without learning weights."""
        index_text(self.arrays, end, self._traits)


_propose = direct(propose_chain)
_learn = direct(learn_answer)


class MixSource:
    """A source whose sessions share their tenant's memory: the followers of contexts, and the weights."""

    name = "mix"
    cost = DraftCost(microseconds=20, opens_aside=True)

    def __init__(self, traits: Words, memory: Memory) -> None:
        """Take the tokens' traits (see traits.py) and a memory, which is closed with the source."""
        self._traits = traits
        self._memory = memory

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "MixSession":
        """Open a session that has indexed the reference and the prompt."""
        tables = TextTables(self._traits, prompt, reference or ())
        return MixSession(self._traits, self._memory.of(tenant), tables, no_others())

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Ask the sessions one after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()


class MixSession:
    """A session that proposes chains of best candidates, and learns at every pass."""

    wants_top = 0

    def __init__(
        self, traits: Words, remembered: TenantMemoryView, tables: TextTables, others: Others
    ) -> None:
        self._traits = traits
        self._remembered = remembered
        self._image = view_image(remembered.image)
        self._tables = tables
        # Each session has its own scratch, since sessions may run on several threads.
        self._scratch = fresh_scratch()
        self._others = others
        self._closed = False

    def propose(self, budget: int) -> Draft:
        """Return a draft of at most `budget` tokens, without learning."""
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
        remembered = CONTEXTS <= int(scratch.marks[TOP_INPUT]) < 2 * CONTEXTS
        return Draft(tokens, claims, self._top_source(), int(scratch.marks[ORDER]), remembered)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Append the committed tokens to the text, and learn from each of them."""
        tables = self._tables
        tables.make_room(len(committed))
        tables.text.append(committed)
        arrays = tables.arrays
        with self._remembered.lock:
            _learn(tables.text.length, arrays, self._image, self._others, self._traits, self._scratch)

    def close(self) -> None:
        """Let the tenant's memory learn the request; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        tables = self._tables
        begin = tables.reference_end
        text = tables.text.tokens[begin : tables.text.length].copy()
        self._remembered.fold(text, tables.answer - begin)

    def _top_source(self) -> str:
        """Return the source of the input that contributed most to the first token of the last proposal."""
        marks, at = self._scratch.marks, self._tables.state[AT]
        if 0 <= at < self._tables.reference_end and marks[BEST] == 0:
            return REFERENCE
        return INPUT_SOURCES.get(int(marks[TOP_INPUT]), MixSource.name)
