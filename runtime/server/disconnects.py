"""Clients that go away while they wait."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from anespec.runtime.server.errors import ApiError

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it if the client disconnects first.

    The request's body must have been read.

    Raises:
        ApiError: the client has disconnected.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise client_gone()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


def client_gone() -> ApiError:
    """Return the error of a request whose client went away; nobody hears it."""
    return ApiError(499, "the client went away", "client_gone")


async def unless(gone: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do `work`, and return whether it was done: it is cancelled where a connection has `gone` before."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(gone.wait())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
