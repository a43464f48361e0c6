"""Requests that wait for a model to be loaded: so many of an owner, as in the queue of a model that is."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from anespec.runtime.room import QueueFullError

RETRY_SECONDS = 5.0
"""When there may be room again; nobody knows how long a model takes."""


class LoadingLine:
    """Counts what waits for models to be loaded, by owner and model. Belongs to the event loop."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        """How many answers are waited for."""
        return self._waiting.total()

    @contextlib.contextmanager
    def place(self, owner: str, model: str, count: int, most: int) -> Iterator[None]:
        """While the block lasts, `count` answers of an owner's wait for a model.

        Raises:
            QueueFullError: more than `most` would.
        """
        who = owner, model
        if self._waiting[who] + count > most:
            raise QueueFullError(most, RETRY_SECONDS)
        self._waiting[who] += count
        try:
            yield
        finally:
            self._waiting[who] -= count
            if not self._waiting[who]:
                del self._waiting[who]
