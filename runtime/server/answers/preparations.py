"""Work in threads, of which there are few: texts are encoded and grammars prepared, mostly before a request
waits for a model."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from anespec.runtime.engine.requests import Principal
from anespec.runtime.server.models import Leased

AT_ONCE = max(2, min(32, (os.cpu_count() or 1) + 4) // 2)
"""Requests of one owner that are prepared at a time: half of asyncio's threads, so that other owners'
requests need not wait for them."""

LARGE = 1 << 16
"""Bytes from which on a request is large: encoding 1 MB of text takes 100 MB of memory."""

LARGE_AT_ONCE = 2
"""Large requests that are worked on at a time, of all owners together."""


@dataclass
class _Owner:
    """The requests of an owner that are being prepared or wait for it, by model."""

    turns: asyncio.Semaphore
    large: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    of_model: Counter[str] = field(default_factory=Counter)


class Preparations:
    """Counts what is being prepared, as if it waited already. Belongs to the event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        """`at_once` requests of one owner are worked on at a time."""
        self._at_once = at_once
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._owners: dict[str, _Owner] = {}

    @contextlib.asynccontextmanager
    async def thread(self, caller: Principal, size: int) -> AsyncIterator[None]:
        """The block begins when it is the caller's turn to have so many bytes worked on in a thread."""
        with self._owner(caller) as owner:
            async with self._alone(owner, size), owner.turns:
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
        with self._owner(caller) as owner:
            ahead = owner.of_model[leased.id]
            owner.of_model[leased.id] += count
            try:
                leased.model.require_room(caller, ahead, count)
                async with self._alone(owner, size), owner.turns:
                    yield
            finally:
                owner.of_model[leased.id] -= count

    @contextlib.asynccontextmanager
    async def _alone(self, owner: _Owner, size: int) -> AsyncIterator[None]:
        """A large request is prepared alone: one for each owner, LARGE_AT_ONCE for all."""
        if size < LARGE:
            yield
            return
        async with owner.large, self._large:
            yield

    @contextlib.contextmanager
    def _owner(self, caller: Principal) -> Iterator[_Owner]:
        """The owner's entry; removed once it has no requests."""
        owner = self._owners.setdefault(caller.owner, _Owner(asyncio.Semaphore(self._at_once)))
        owner.count += 1
        try:
            yield owner
        finally:
            owner.count -= 1
            if not owner.count:
                del self._owners[caller.owner]
