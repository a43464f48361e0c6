"""The state that all endpoints share."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from anespec.runtime.engine.requests import Principal
from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.server.http.errors import ending
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.shares import PreparationTime
from anespec.runtime.server.metrics import Metrics
from anespec.runtime.server.models import Leased, Models
from anespec.runtime.server.options import ServeOptions


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


AT_ONCE = max(2, min(32, (os.cpu_count() or 1) + 4) // 2)
"""Requests of one tenant that are prepared at a time: half of asyncio's threads, so that other tenants'
requests need not wait for them."""

LARGE = 1 << 16
"""Bytes from which on a request is large: encoding 1 MB of text takes 100 MB of memory."""

LARGE_AT_ONCE = 2
"""Large requests that are worked on at a time, of all tenants together."""


@dataclass
class _Owner:
    """The requests of a tenant that are being prepared or wait for it, by model."""

    turns: asyncio.Semaphore
    large: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    of_model: Counter[str] = field(default_factory=Counter)


class Preparations:
    """Counts what is being prepared, as if it waited already. Belongs to the event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        """`at_once` requests of one tenant are worked on at a time."""
        self._at_once = at_once
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._tenants: dict[str, _Owner] = {}

    @contextlib.asynccontextmanager
    async def thread(self, caller: Principal, size: int) -> AsyncIterator[None]:
        """The block begins when it is the caller's turn to have so many bytes worked on in a thread."""
        with self._owner(caller) as tenant:
            async with self._alone(tenant, size), tenant.turns:
                yield

    @contextlib.asynccontextmanager
    async def turn(
        self, leased: Leased, caller: Principal, size: int = 0, count: int = 1
    ) -> AsyncIterator[None]:
        """The block begins when it is the caller's turn to prepare a request of so many bytes, for `count`
        answers of a model.

        Raises:
            RequestError: so many can never wait.
            QueueFullError: there is no room for all of them beside those that are prepared or wait.
        """
        with self._owner(caller) as tenant:
            ahead = tenant.of_model[leased.id]
            tenant.of_model[leased.id] += count
            try:
                leased.model.require_room(caller, ahead, count)
                async with self._alone(tenant, size), tenant.turns:
                    yield
            finally:
                tenant.of_model[leased.id] -= count

    @contextlib.asynccontextmanager
    async def _alone(self, tenant: _Owner, size: int) -> AsyncIterator[None]:
        """A large request is prepared alone: one for each tenant, LARGE_AT_ONCE for all."""
        if size < LARGE:
            yield
            return
        async with tenant.large, self._large:
            yield

    @contextlib.contextmanager
    def _owner(self, caller: Principal) -> Iterator[_Owner]:
        """The tenant's entry; removed once it has no requests."""
        tenant = self._tenants.setdefault(caller.tenant, _Owner(asyncio.Semaphore(self._at_once)))
        tenant.count += 1
        try:
            yield tenant
        finally:
            tenant.count -= 1
            if not tenant.count:
                del self._tenants[caller.tenant]


# Count the requests that wait for a model to be loaded; the limits of a loaded model's queue apply.

RETRY_SECONDS = 5.0
"""The Retry-After of a refusal; the time that loading takes is unknown."""


class LoadingLine:
    """Counts waiting answers by tenant and model. Use it only from the event loop."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        """Return the number of answers that wait."""
        return self._waiting.total()

    @contextlib.contextmanager
    def place(self, tenant: str, model: str, count: int, most: int) -> Iterator[None]:
        """Count `count` answers of a tenant as waiting for a model, for the block.

        Raises:
            QueueFullError: more than `most` of them would wait.
        """
        who = tenant, model
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
