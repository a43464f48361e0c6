"""Draft from a corpus on disk: what followed there after the longest match of the text's end.

He et al., "REST: Retrieval-Based Speculative Decoding" (arXiv 2311.08252), with a chain in place of a tree.
"""

from collections.abc import Sequence

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, propose_each
from anespec.runtime.drafters.candidates import Chances
from anespec.runtime.drafters.chains import ChainSession
from anespec.runtime.drafters.datastore.kernels import datastore_guess
from anespec.runtime.drafters.datastore.stored import Datastore
from anespec.runtime.drafters.texts import GrowingText, SeenRows, Tokens


class DatastoreGuesser:
    """Guesses for one sequence; it learns nothing."""

    name = "datastore"
    wants_top = 0

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def begin(self, text: GrowingText) -> None:
        """The text is looked at when it is asked for."""

    def guess(self, tokens: Tokens, length: int, found: Tokens, chances: Chances) -> tuple[int, int]:
        """Return the followers of the text's end in the corpus. Raises StorageError if the file was
        truncated."""
        store = self._store
        store.require_whole()
        return datastore_guess(store.starts, store.text, store.order, tokens, length, found, chances)

    def learn(self, text: GrowingText, before: int, outcome: Outcome, rows: SeenRows) -> None:
        """The corpus stays as it is."""

    def end(self, text: GrowingText) -> None:
        """Nothing is kept."""


class DatastoreSource:
    """Sessions that look up one datastore. It is the same for all tenants, and learns of none."""

    name = "datastore"
    cost = DraftCost(microseconds=100)

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> ChainSession:
        """A session; a reference is no part of the corpus."""
        return ChainSession(DatastoreGuesser(self._store), prompt)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def close(self) -> None:
        """The file is let go of with the last session."""
