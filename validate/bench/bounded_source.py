"""A draft source that is asked for so many tokens at most."""

from collections.abc import Sequence

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource


class BoundedSource:
    """Another source, whose drafts have `most` tokens at most; it may be changed between two requests."""

    def __init__(self, source: DraftSource, most: int) -> None:
        """`source` stays its owner's."""
        self._source = source
        self.most = most

    @property
    def name(self) -> str:
        """The other's."""
        return self._source.name

    @property
    def cost(self) -> DraftCost:
        """The other's."""
        return self._source.cost

    def open(self, owner: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> DraftSession:
        """A session of the other."""
        return self._source.open(owner, prompt, reference)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """The other's drafts, within this limit too."""
        return self._source.propose([(session, min(budget, self.most)) for session, budget in asks])

    def close(self) -> None:
        """Nothing: the other stays its owner's."""
