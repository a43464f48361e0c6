"""Limit the time that each key takes for preparing its requests; a key above its share waits for the others.

Reading a body, rendering a template, checking a grammar and writing an answer take time of the processors and
of the interpreter, which all keys share with the passes themselves. All of that happens before the queue,
which therefore cannot share it fairly. So the seconds that each tenant's requests take there are counted, and
while others are served, a tenant gets a SHARE of the time at most. A tenant who is alone gets all of it.

Requests that only look (an open path, a list of models, a refusal) are counted separately, and their answers
are paced. So they delay no other request of the same tenant; requests without a key are counted together,
with no tenant.

A request whose client goes away while it waits ends at once: it keeps neither its place nor its model.
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
"""Seconds in each second that a tenant's requests may take while others are served."""

BURST = 0.25
"""Seconds that may be taken beyond that at once: what a few usual requests take, or one that is large."""

DEBT = 1.0
"""The most seconds of debt: a long request, or time that was used while no other tenant was served, is not
charged without limit."""

REQUEST = 0.002
"""Seconds that each request takes in addition to the counted ones: its head, its log, its end."""

BYTE = 1e-8
"""Seconds that each byte takes of an answer to what only looks."""

PRESENT = 1.0
"""Seconds for which a tenant whose last request has ended is still taken to be served: clients come again."""

LOOK = 0.05
"""Seconds after which a waiting request checks whether the others have ended."""

_LOOKS = "\0looks"
"""Behind a tenant's name: what only looks. No name has it in it."""


@dataclass
class _Owner:
    """What was left of a tenant's seconds when they were `counted`; how many requests are served, and when
    one last ended."""

    left: float = BURST
    counted: float = 0.0
    requests: int = 0
    seen: float = -math.inf
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)


class PreparationTime:
    """The seconds of all tenants. Belongs to the event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` gives seconds, `sleep` waits for so many."""
        self._clock = clock
        self._sleep = sleep
        self._tenants: dict[str, _Owner] = {}

    @contextlib.contextmanager
    def of(self, name: str, gone: asyncio.Event | None = None) -> Iterator["Share"]:
        """One request of a tenant, while it is served; `gone` is set once its connection has ended."""
        self._forget_absent()
        tenant = self._tenants.setdefault(name, _Owner())
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
        """A request that only reads the daemon's state: its time counts, but it does not wait."""
        share = Share(self, name, gone)
        try:
            yield share
        finally:
            share.pause()

    def is_turn_to_look(self, name: str) -> bool:
        """Whether `look` would not wait."""
        return self.is_turn(self._looker(name))

    async def look(self, name: str) -> None:
        """Wait until it is a tenant's turn to be answered what only looks, and count that."""
        await self.turn(self._looker(name))
        self.take(self._looker(name), REQUEST)

    def looked(self, name: str, size: int) -> None:
        """Count so many bytes of an answer to what only looks."""
        self.take(self._looker(name), size * BYTE)

    def known(self) -> tuple[str, ...]:
        """The tenants whose seconds are counted."""
        return tuple(self._tenants)

    def now(self) -> float:
        """The time."""
        return self._clock()

    def take(self, name: str, seconds: float) -> None:
        """Note that a tenant's request took so long."""
        tenant, now = self._tenants.setdefault(name, _Owner()), self._clock()
        had = min(BURST, tenant.left + SHARE * (now - tenant.counted))
        tenant.left, tenant.counted = max(had - seconds, -DEBT), now

    def is_turn(self, name: str) -> bool:
        """Whether `turn` would not wait."""
        tenant = self._tenants.setdefault(name, _Owner())
        self.take(name, 0.0)
        return not tenant.turns.locked() and (tenant.left > 0.0 or not self._others(name))

    async def turn(self, name: str) -> None:
        """Wait while the tenant has taken its share and others are served, in the order of asking."""
        tenant = self._tenants.setdefault(name, _Owner())
        async with tenant.turns:
            while self._others(name):
                self.take(name, 0.0)
                if tenant.left > 0.0:
                    return
                await self._sleep(min(LOOK, -tenant.left / SHARE + 0.001))

    @staticmethod
    def _looker(name: str) -> str:
        return f"{name}{_LOOKS}"

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
            other.requests or now - other.seen < PRESENT
            for its, other in self._tenants.items()
            if its != name
        )


class Share:
    """The time that one request takes; it counts from each of its turns to the next pause."""

    def __init__(self, shares: PreparationTime, tenant: str, gone: asyncio.Event | None) -> None:
        self._shares = shares
        self._owner = tenant
        self._gone = gone
        self._since: float | None = None

    async def turn(self) -> None:
        """Begin to count, once it is the tenant's turn.

        Raises:
            ApiError: the client went away.
        """
        self.pause()
        if self._gone is not None and self._gone.is_set():
            raise client_gone()
        if not self._shares.is_turn(self._owner):
            await self.wait_for(self._shares.turn(self._owner))
        self._since = self._shares.now()

    async def wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        """Do what has to be done before the request goes on; where its client goes away, it is cancelled.

        Raises:
            ApiError: the client went away.
        """
        if self._gone is None:
            await work
        elif not await unless(self._gone, work):
            raise client_gone()

    def pause(self) -> None:
        """Stop counting: the awaited work takes no processor time."""
        if self._since is not None:
            self._shares.take(self._owner, self._shares.now() - self._since)
            self._since = None
