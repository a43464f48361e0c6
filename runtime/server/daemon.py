"""Hold the state that all endpoints share."""

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
    """The phases of a daemon. STARTING: it loads models. DRAINING: it accepts no new requests."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Lifecycle:
    """The phase of a daemon, and the number of running requests. Use it on the event loop only."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.loading: str | None = None
        """The current step of the start, and the share done."""

    @property
    def phase(self) -> Phase:
        """Return the current phase."""
        return self._phase

    @property
    def answering(self) -> int:
        """Return the number of requests that are being answered."""
        return self._answering

    def ready(self) -> None:
        """Accept requests from now on."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.READY

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """Count a request as being answered while the block lasts.

        Raises:
            ApiError: the daemon accepts no new requests.
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
        """Accept no new requests; return whether the running ones ended within `seconds`."""
        self._phase = Phase.DRAINING
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return self._idle.is_set()


CONCURRENT_PREPARATIONS = max(2, min(32, (os.cpu_count() or 1) + 4) // 2)
"""How many requests of one tenant are prepared at a time: half of asyncio's threads, so that other tenants do
not wait."""

LARGE_REQUEST_BYTES = 1 << 16
"""The least bytes of a large request. Encoding 1 MB of text takes 100 MB of memory."""

CONCURRENT_LARGE_REQUESTS = 2
"""How many large requests of all tenants together are prepared at a time."""


@dataclass
class _TenantState:
    """A tenant's requests that are being prepared or wait for that, by model."""

    turns: asyncio.Semaphore
    large: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    of_model: Counter[str] = field(default_factory=Counter)


class Preparations:
    """The requests in preparation, which count against the queue limit. Use it on the event loop only."""

    def __init__(self, at_once: int = CONCURRENT_PREPARATIONS) -> None:
        """Prepare at most `at_once` requests of a tenant at a time."""
        self._at_once = at_once
        self._large = asyncio.Semaphore(CONCURRENT_LARGE_REQUESTS)
        self._tenants: dict[str, _TenantState] = {}

    @contextlib.asynccontextmanager
    async def thread(self, caller: Principal, size: int) -> AsyncIterator[None]:
        """Wait until the caller may use a thread for a request of `size` bytes; hold that place for the
        block."""
        with self._tenant(caller) as tenant:
            async with self._alone(tenant, size), tenant.turns:
                yield

    @contextlib.asynccontextmanager
    async def turn(
        self, leased: Leased, caller: Principal, size: int = 0, count: int = 1
    ) -> AsyncIterator[None]:
        """Wait until the caller may prepare a request of `size` bytes for `count` answers; count it for the
        block.

        Raises:
            RequestError: the model's queue can never hold that many.
            QueueFullError: the queue cannot hold them beside the waiting and prepared ones.
        """
        with self._tenant(caller) as tenant:
            ahead = tenant.of_model[leased.id]
            tenant.of_model[leased.id] += count
            try:
                leased.model.require_room(caller, ahead, count)
                async with self._alone(tenant, size), tenant.turns:
                    yield
            finally:
                tenant.of_model[leased.id] -= count

    @contextlib.asynccontextmanager
    async def _alone(self, tenant: _TenantState, size: int) -> AsyncIterator[None]:
        """Wait until a large request may be prepared: one of each tenant, a few of all tenants."""
        if size < LARGE_REQUEST_BYTES:
            yield
            return
        async with tenant.large, self._large:
            yield

    @contextlib.contextmanager
    def _tenant(self, caller: Principal) -> Iterator[_TenantState]:
        """Yield the tenant's entry, which is removed when it has no requests."""
        tenant = self._tenants.setdefault(caller.tenant, _TenantState(asyncio.Semaphore(self._at_once)))
        tenant.count += 1
        try:
            yield tenant
        finally:
            tenant.count -= 1
            if not tenant.count:
                del self._tenants[caller.tenant]


# Count the requests that wait for a model to be loaded; the limits of a loaded model's queue apply.

RETRY_SECONDS = 5.0
"""The Retry-After of a refusal, in seconds. How long loading takes is unknown."""


class LoadingLine:
    """The number of answers that wait for a model to be loaded, by tenant and model. Use it on the event loop
    only."""

    def __init__(self) -> None:
        """Start with no waiting answers."""
        self._waiting: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        """Return the number of answers that wait."""
        return self._waiting.total()

    @contextlib.contextmanager
    def place(self, tenant: str, model: str, count: int, most: int) -> Iterator[None]:
        """Count `count` answers of a tenant as waiting for a model, for the block.

        Raises:
            QueueFullError: more than `most` answers would wait.
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
