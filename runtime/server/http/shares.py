"""Share the time for preparing requests among tenants, so that one tenant cannot slow down the others.

Reading a body, rendering a template, checking a grammar and writing an answer take processor time and
Python's interpreter lock, which all tenants share with the passes. This happens outside the queue, which
therefore cannot share it fairly. So the seconds of each tenant are counted, but only while another tenant
prepares a request or waits for its turn to: what nobody else wanted is not owed to anybody. Each tenant may
always use a SHARE of the time. A tenant that used more gives way while a tenant that used less prepares or
waits, and only then. So a tenant that sends a small request now and then, valid or not, delays the others by
the time of that request.

Requests that only read state (an open path, a list of models, a refusal) are counted separately, and their
answers are paced while requests are served, so they do not delay other requests of the same tenant. Requests
without a key are counted together.

A request whose client disconnects while it waits ends at once, and releases its place and its model.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from anespec.runtime.server.http.streams import client_gone, unless

SHARE = 0.15
"""The share of the time that a tenant's requests may always take, whatever others do."""

BURST = 0.25
"""Seconds that a tenant may take at once: enough for a few usual requests, or a large one."""

DEBT = 1.0
"""The most seconds of debt. It limits the charge for a long request."""

REQUEST = 0.002
"""Seconds charged for each request in addition to the measured ones: for its head, log and end."""

BYTE = 1e-8
"""Seconds charged for each byte of an answer that only reads state."""

LOOK_SECONDS = 0.05
"""Seconds after which a waiting request compares the tenants' seconds again, if nobody paused before."""

_LOOK_SUFFIX = "\0looks"
"""The suffix of a tenant's name for requests that only read state. No name contains it."""


@dataclass
class _TenantState:
    """A tenant's account: the seconds left at the time `counted`, when the clock of contended time showed
    `contended`; the requests that are being prepared, and those that are being served."""

    left: float
    counted: float
    contended: float
    preparing: int = 0
    requests: int = 0
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)


class _ContendedTime:
    """The tenants that prepare requests or wait to, and a clock that runs while there are several."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._present: Counter[str] = Counter()
        self._seconds = 0.0
        self._counted = clock()

    def enter(self, name: str) -> None:
        """Count a request of a tenant that prepares or waits."""
        self._settle()
        self._present[name] += 1

    def leave(self, name: str) -> None:
        """Stop counting a request of a tenant."""
        self._settle()
        self._present[name] -= 1
        if not self._present[name]:
            del self._present[name]

    def others(self, name: str) -> list[str]:
        """Return the other tenants that prepare or wait."""
        return [other for other in self._present if other != name]

    def seconds(self) -> float:
        """Return the seconds in which several tenants prepared or waited."""
        self._settle()
        return self._seconds

    def _settle(self) -> None:
        now = self._clock()
        if len(self._present) > 1:
            self._seconds += now - self._counted
        self._counted = now


class PreparationTime:
    """The preparation time of all tenants, in seconds. Use it on the event loop only."""

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep,
    ) -> None:
        """`clock` returns seconds; `sleep` waits for a number of seconds."""
        self._clock = clock
        self._sleep = sleep
        self._tenants: dict[str, _TenantState] = {}
        self._serving = 0
        self._contended = _ContendedTime(clock)
        self._paused = asyncio.Event()

    @contextlib.contextmanager
    def of(self, name: str, gone: asyncio.Event | None = None) -> Iterator["Share"]:
        """Count a request of a tenant while the block lasts; `gone` is set when its connection ends."""
        self._forget_absent()
        tenant = self._settled(name)
        tenant.requests += 1
        self._serving += 1
        share = Share(self, name, gone)
        if self._contended.others(name):
            self._take(name, REQUEST)
        try:
            yield share
        finally:
            share.pause()
            tenant.requests -= 1
            self._serving -= 1

    @contextlib.contextmanager
    def looking(self, name: str, gone: asyncio.Event | None = None) -> Iterator["Share"]:
        """Count the preparation of a request that only reads the daemon's state; no look waits for it."""
        share = Share(self, name, gone)
        try:
            yield share
        finally:
            share.pause()

    def is_turn_to_look(self, name: str) -> bool:
        """Return whether `look` would return at once."""
        looker = self._looker(name)
        return not self._settled(looker).turns.locked() and not self._must_not_look(looker)

    async def look(self, name: str) -> None:
        """Wait until a tenant may get an answer that only reads state, and charge it."""
        looker = self._looker(name)
        await self._wait_while(self._must_not_look, looker)
        self._charge_look(looker, REQUEST)

    def looked(self, name: str, size: int) -> None:
        """Charge `size` bytes of an answer that only reads state."""
        self._charge_look(self._looker(name), size * BYTE)

    def known(self) -> tuple[str, ...]:
        """Return the tenants whose seconds are counted."""
        return tuple(self._tenants)

    def is_turn(self, name: str) -> bool:
        """Return whether `turn` would return at once."""
        return not self._settled(name).turns.locked() and not self._gives_way(name)

    async def turn(self, name: str) -> None:
        """Wait while the tenant has used up its share, and one that used less prepares or waits; first come,
        first served."""
        self._contended.enter(name)
        try:
            await self._wait_while(self._gives_way, name)
        finally:
            self._contended.leave(name)
            self._wake()

    def prepare(self, name: str) -> None:
        """Begin to count the seconds of a request."""
        tenant = self._settled(name)
        self._contended.enter(name)
        tenant.preparing += 1

    def pause(self, name: str) -> None:
        """Stop counting the seconds of a request."""
        tenant = self._settled(name)
        tenant.preparing -= 1
        self._contended.leave(name)
        self._wake()

    @staticmethod
    def _looker(name: str) -> str:
        return f"{name}{_LOOK_SUFFIX}"

    def _settled(self, name: str) -> _TenantState:
        """Return a tenant's account as it stands now."""
        now, contended = self._clock(), self._contended.seconds()
        tenant = self._tenants.setdefault(name, _TenantState(BURST, now, contended))
        used = tenant.preparing * (contended - tenant.contended)
        left = tenant.left + SHARE * (now - tenant.counted) - used
        tenant.left, tenant.counted, tenant.contended = max(-DEBT, min(BURST, left)), now, contended
        return tenant

    def _take(self, name: str, seconds: float) -> None:
        tenant = self._settled(name)
        tenant.left = max(-DEBT, tenant.left - seconds)

    def _gives_way(self, name: str) -> bool:
        """Return whether a tenant without seconds must wait for one that has more."""
        left = self._settled(name).left
        return left <= 0.0 and any(self._settled(other).left > left for other in self._contended.others(name))

    def _must_not_look(self, looker: str) -> bool:
        return self._serving > 0 and self._settled(looker).left <= 0.0

    def _charge_look(self, looker: str, seconds: float) -> None:
        if self._serving:
            self._take(looker, seconds)

    async def _wait_while(self, must_wait: Callable[[str], bool], name: str) -> None:
        tenant = self._settled(name)
        async with tenant.turns:
            while must_wait(name):
                await unless(self._paused, self._sleep(min(LOOK_SECONDS, -tenant.left / SHARE + 0.001)))

    def _wake(self) -> None:
        """Let the waiting requests compare the tenants again."""
        self._paused.set()
        self._paused = asyncio.Event()

    def _forget_absent(self) -> None:
        """Remove tenants whose remaining share equals the initial one, since keys may be removed, too."""
        long_ago = self._clock() - (BURST + DEBT) / SHARE
        for name, tenant in list(self._tenants.items()):
            if not tenant.requests and not tenant.preparing and tenant.counted < long_ago:
                del self._tenants[name]


class Share:
    """The preparation time of one request; it counts from each turn to the next pause."""

    def __init__(self, shares: PreparationTime, tenant: str, gone: asyncio.Event | None) -> None:
        self._shares = shares
        self._tenant = tenant
        self._gone = gone
        self._is_preparing = False

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
        self._shares.prepare(self._tenant)
        self._is_preparing = True

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
        if self._is_preparing:
            self._shares.pause(self._tenant)
            self._is_preparing = False
