"""Requests before they wait for a model: prompts are encoded and grammars prepared in threads, of which there
are few."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from anespec.runtime.callers import Caller
from anespec.runtime.server.models import Leased

AT_ONCE = max(2, min(32, (os.cpu_count() or 1) + 4) // 2)
"""Requests of one owner that are prepared at a time: half of the threads that asyncio has, so that others'
need not wait for them."""


@dataclass
class _Owner:
    """What of an owner's is prepared, or waits for that."""

    turns: asyncio.Semaphore
    of_model: dict[str, int] = field(default_factory=dict)


class Preparations:
    """Counts what is being prepared, as if it waited already. Belongs to the event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        """`at_once` requests of one owner are prepared at a time."""
        self._at_once = at_once
        self._owners: dict[str, _Owner] = {}

    @contextlib.asynccontextmanager
    async def turn(self, leased: Leased, caller: Caller) -> AsyncIterator[None]:
        """The block begins when it is the caller's turn to prepare a request for a model.

        Raises:
            QueueFullError: as many of the caller's requests are prepared or wait as may.
        """
        owner = self._owners.setdefault(caller.owner, _Owner(asyncio.Semaphore(self._at_once)))
        ahead = owner.of_model.get(leased.id, 0)
        owner.of_model[leased.id] = ahead + 1
        try:
            leased.model.require_room(caller, ahead)
            async with owner.turns:
                yield
        finally:
            owner.of_model[leased.id] -= 1
            if not owner.of_model[leased.id]:
                del owner.of_model[leased.id]
            if not owner.of_model:
                self._owners.pop(caller.owner, None)
