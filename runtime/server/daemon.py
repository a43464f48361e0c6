"""The state that all endpoints share."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.server.answers.preparations import Preparations
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.shares import PreparationTime
from anespec.runtime.server.lifecycle import Lifecycle
from anespec.runtime.server.metrics import Metrics
from anespec.runtime.server.models import Models
from anespec.runtime.server.options import ServeOptions

# Count the requests that wait for a model to be loaded; the limits of a loaded model's queue apply.

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


@dataclass(frozen=True)
class Daemon:
    """A daemon's models, its keys, and its state."""

    version: str
    options: ServeOptions
    models: Models
    keys: KeyRing
    metrics: Metrics
    lifecycle: Lifecycle
    preparations: Preparations = field(default_factory=Preparations)
    loading: LoadingLine = field(default_factory=LoadingLine)
    shares: PreparationTime = field(default_factory=PreparationTime)
