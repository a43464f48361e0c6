"""The tables of one text: everything that a session has indexed. They grow with the text."""

from collections.abc import Sequence

import numpy as np

from anespec.runtime.drafters.mix.layout import BUCKET, NODE_BYTES, NODE_WORDS, Text, Words
from anespec.runtime.drafters.mix.nodes import WORD_COLUMNS, word_rows
from anespec.runtime.drafters.mix.pointer import LENGTHS
from anespec.runtime.drafters.mix.state import STATE
from anespec.runtime.drafters.mix.walk import OPENING_TOKENS, begin_answer, begin_text, index_text
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
