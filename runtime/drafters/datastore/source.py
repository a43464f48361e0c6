"""Draft from a corpus on disk: guess the tokens that follow there after the longest match of the text's end.

He et al., "REST: Retrieval-Based Speculative Decoding" (arXiv 2311.08252), with a chain instead of a tree.
"""

from collections.abc import Sequence

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, propose_each
from anespec.runtime.drafters.candidates import Chances
from anespec.runtime.drafters.chains import ChainSession
from anespec.runtime.drafters.datastore.kernels import datastore_guess
from anespec.runtime.drafters.datastore.stored import Datastore
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens


class DatastoreGuesser:
    """A guesser for one sequence from a datastore; it learns nothing."""

    name = "datastore"
    wants_top = 0

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def begin(self, text: GrowingText) -> None:
        """Do nothing."""

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Guess the tokens that follow the text's end in the corpus.

        Raises:
            StorageError: the file was truncated.
        """
        store = self._store
        store.require_whole()
        return datastore_guess(store.starts, store.text, store.order, tokens, length, found, chances)

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """Do nothing: the corpus never changes."""

    def end(self, text: GrowingText) -> None:
        """Do nothing: the corpus never changes."""


class DatastoreSource:
    """A source whose sessions search one datastore, which serves all tenants and learns from none."""

    name = "datastore"
    cost = DraftCost(microseconds=100)

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> ChainSession:
        """Open a session; it makes no use of a reference."""
        return ChainSession(DatastoreGuesser(self._store), prompt)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Ask the sessions one after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Do nothing: the file is unmapped with the last session."""
