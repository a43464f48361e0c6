"""Lease a model to a request; while the model is loaded, the request's own limits apply."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from anespec.runtime.server.http.endpoint import Call
from anespec.runtime.server.http.errors import out_of_time
from anespec.runtime.server.http.streams import while_connected
from anespec.runtime.server.models import Leased, Loaded


@contextlib.asynccontextmanager
async def lease(call: Call[Any], name: str | None, count: int = 1) -> AsyncIterator[Leased]:
    """Lease the model `name` (None: the default) to a request for `count` answers.

    If it has to be loaded first, the request waits until its time limit, or until its client disconnects, and
    counts against the queue limit of its tenant.

    Raises on entering:
        ApiError: there is no such model, it is not loaded in time, or the client disconnected.
        QueueFullError: too many of the tenant's requests wait for the model.
        AnespecError: the model cannot be loaded.
    """
    daemon, tenant = call.daemon, call.caller.tenant

    async def wait(loaded: Loaded) -> None:
        with daemon.loading.place(tenant, name or "", count, daemon.options.queue):
            try:
                async with asyncio.timeout(call.caller.seconds):
                    await while_connected(call.request, loaded())
            except TimeoutError:
                raise out_of_time() from None

    async with daemon.models.lease(name, wait) as leased:
        yield leased
