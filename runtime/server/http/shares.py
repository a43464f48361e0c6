"""Limit each tenant's time for preparing requests, so that one tenant cannot slow down the others.

Reading a body, rendering a template, checking a grammar and writing an answer take processor time and
Python's interpreter lock, which all tenants share with the passes. This happens outside the queue, which
therefore cannot share it fairly. So the seconds of each tenant are counted. While other tenants are served, a
tenant gets at most a SHARE of the time; a tenant that is alone gets all of it.

Requests that only read state (an open path, a list of models, a refusal) are counted separately, and their
answers are paced, so they do not delay other requests of the same tenant. Requests without a key are counted
together.

A request whose client disconnects while it waits ends at once, and releases its place and its model.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from anespec.runtime.server.http.streams import client_gone, unless

SHARE = 0.15
"""The share of the time that a tenant's requests may take while other tenants are served."""

BURST = 0.25
"""Seconds that a tenant may take at once: enough for a few usual requests, or a large one."""

DEBT = 1.0
"""The most seconds of debt. It limits the charge for a long request, or for time used while the tenant was
alone."""

REQUEST = 0.002
"""Seconds charged for each request in addition to the measured ones: for its head, log and end."""

BYTE = 1e-8
"""Seconds charged for each byte of an answer that only reads state."""

PRESENCE_SECONDS = 1.0
"""Seconds after its last request during which a tenant still counts as being served, since clients send
more."""

LOOK_SECONDS = 0.05
"""Seconds after which a waiting request checks whether the others have ended."""

_LOOK_SUFFIX = "\0looks"
"""The suffix of a tenant's name for requests that only read state. No name contains it."""


@dataclass
class _TenantState:
    """A tenant's account: the seconds left at the time `counted`, the running requests, and the last
    request's end."""

    left: float = BURST
    counted: float = 0.0
    requests: int = 0
    seen: float = -math.inf
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)


class PreparationTime:
    """The preparation time of all tenants, in seconds. Use it on the event loop only."""

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` returns seconds; `sleep` waits for a number of seconds."""
        self._clock = clock
        self._sleep = sleep
        self._tenants: dict[str, _TenantState] = {}

    @contextlib.contextmanager
    def of(self, name: str, gone: asyncio.Event | None = None) -> Iterator["Share"]:
        """Count a request of a tenant while the block lasts; `gone` is set when its connection ends."""
        self._forget_absent()
        tenant = self._tenants.setdefault(name, _TenantState())
        tenant.requests += 1
        share = Share(self, name, gone)
        self.take(name, REQUEST)
        try:
            yield share
        finally:
            share.pause()
            tenant.requests -= 1
            tenant.seen = self._clock()

    @contextlib.contextmanager
    def looking(self, name: str, gone: asyncio.Event | None = None) -> Iterator["Share"]:
        """Count a request that only reads the daemon's state: its time counts, but it does not wait."""
        share = Share(self, name, gone)
        try:
            yield share
        finally:
            share.pause()

    def is_turn_to_look(self, name: str) -> bool:
        """Return whether `look` would return at once."""
        return self.is_turn(self._looker(name))

    async def look(self, name: str) -> None:
        """Wait until a tenant may get an answer that only reads state, and charge it."""
        await self.turn(self._looker(name))
        self.take(self._looker(name), REQUEST)

    def looked(self, name: str, size: int) -> None:
        """Charge `size` bytes of an answer that only reads state."""
        self.take(self._looker(name), size * BYTE)

    def known(self) -> tuple[str, ...]:
        """Return the tenants whose seconds are counted."""
        return tuple(self._tenants)

    def now(self) -> float:
        """Return the current time of the clock, in seconds."""
        return self._clock()

    def take(self, name: str, seconds: float) -> None:
        """Charge a tenant for seconds of a request."""
        tenant, now = self._tenants.setdefault(name, _TenantState()), self._clock()
        had = min(BURST, tenant.left + SHARE * (now - tenant.counted))
        tenant.left, tenant.counted = max(had - seconds, -DEBT), now

    def is_turn(self, name: str) -> bool:
        """Return whether `turn` would return at once."""
        tenant = self._tenants.setdefault(name, _TenantState())
        self.take(name, 0.0)
        return not tenant.turns.locked() and (tenant.left > 0.0 or not self._others(name))

    async def turn(self, name: str) -> None:
        """Wait while the tenant has used up its share and others are served; first come, first served."""
        tenant = self._tenants.setdefault(name, _TenantState())
        async with tenant.turns:
            while self._others(name):
                self.take(name, 0.0)
                if tenant.left > 0.0:
                    return
                await self._sleep(min(LOOK_SECONDS, -tenant.left / SHARE + 0.001))

    @staticmethod
    def _looker(name: str) -> str:
        return f"{name}{_LOOK_SUFFIX}"

    def _forget_absent(self) -> None:
        """Remove tenants whose remaining share equals the initial one, since keys may be removed, too."""
        long_ago = self._clock() - (BURST + DEBT) / SHARE
        for name, tenant in list(self._tenants.items()):
            if not tenant.requests and max(tenant.seen, tenant.counted) < long_ago:
                del self._tenants[name]

    def _others(self, name: str) -> bool:
        """Return whether another tenant is served, or was just now."""
        now = self._clock()
        return any(
            other.requests or now - other.seen < PRESENCE_SECONDS
            for its, other in self._tenants.items()
            if its != name
        )


class Share:
    """The preparation time of one request; it counts from each turn to the next pause."""

    def __init__(self, shares: PreparationTime, tenant: str, gone: asyncio.Event | None) -> None:
        self._shares = shares
        self._tenant = tenant
        self._gone = gone
        self._since: float | None = None

    async def turn(self) -> None:
        """Wait for the tenant's turn, and start to count.

        Raises:
            ApiError: the client disconnected.
        """
        self.pause()
        if self._gone is not None and self._gone.is_set():
            raise client_gone()
        if not self._shares.is_turn(self._tenant):
            await self.wait_for(self._shares.turn(self._tenant))
        self._since = self._shares.now()

    async def wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        """Await work that the request needs; cancel it if the client disconnects.

        Raises:
            ApiError: the client disconnected.
        """
        if self._gone is None:
            await work
        elif not await unless(self._gone, work):
            raise client_gone()

    def pause(self) -> None:
        """Stop counting, before work that takes no processor time is awaited."""
        if self._since is not None:
            self._shares.take(self._tenant, self._shares.now() - self._since)
            self._since = None
