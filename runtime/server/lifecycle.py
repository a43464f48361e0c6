"""The life of a daemon: it is ready once a model is loaded, and ends after its last answer."""

import asyncio
import contextlib
from collections.abc import Iterator
from enum import StrEnum

from anespec.runtime.server.http.errors import ending


class Phase(StrEnum):
    """The states of a daemon. STARTING: models are loaded. DRAINING: it accepts no new requests."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Lifecycle:
    """The phase of a daemon, and the requests that are being answered. Belongs to the event loop."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.loading: str | None = None
        """What is being done until it is ready, and how far that is."""

    @property
    def phase(self) -> Phase:
        """The current state of the daemon."""
        return self._phase

    @property
    def answering(self) -> int:
        """Requests that are being answered."""
        return self._answering

    def ready(self) -> None:
        """From now on requests are served."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.READY

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """While the block lasts a request is being answered.

        Raises:
            ApiError: the daemon takes no new ones.
        """
        if self._phase is Phase.DRAINING:
            raise ending()
        self._answering += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._answering -= 1
            if not self._answering:
                self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Take no new requests; whether those that were being answered ended within so many seconds."""
        self._phase = Phase.DRAINING
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return self._idle.is_set()
