"""Count the requests that wait for a model to be loaded; the limits of a loaded model's queue apply."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from anespec.runtime.room import QueueFullError

RETRY_SECONDS = 5.0
"""The Retry-After of a refusal; the time that loading takes is unknown."""


class LoadingLine:
    """Counts waiting answers by owner and model. Use it only from the event loop."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        """Return the number of answers that wait."""
        return self._waiting.total()

    @contextlib.contextmanager
    def place(self, owner: str, model: str, count: int, most: int) -> Iterator[None]:
        """Count `count` answers of an owner as waiting for a model, for the block.

        Raises:
            QueueFullError: more than `most` of them would wait.
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
