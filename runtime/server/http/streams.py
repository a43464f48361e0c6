"""Send streamed answers, as server-sent events or JSON lines."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from anespec.runtime.server.http.errors import ApiError

# Cancel work when the client disconnects.

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
    """Return the error for a request whose client disconnected; it is only logged."""
    return ApiError(499, "the client disconnected", "client_gone")


async def unless(gone: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Await `work`, and cancel it if the connection ends before (`gone`); return whether it was completed."""
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


PING_SECONDS = 15.0

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

DONE = b"data: [DONE]\n\n"


def event(data: BaseModel | Mapping[str, Any], name: str | None = None) -> bytes:
    """Return a server-sent event; unset fields of a model are left out."""
    head = f"event: {name}\n" if name is not None else ""
    return f"{head}data: {as_json(data)}\n\n".encode()


def line(data: BaseModel | Mapping[str, Any]) -> bytes:
    """Return a line of JSON."""
    return f"{as_json(data)}\n".encode()


def as_json(data: BaseModel | Mapping[str, Any]) -> str:
    """Return data as JSON on one line."""
    if isinstance(data, BaseModel):
        return data.model_dump_json(exclude_unset=True, by_alias=True)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def json_answer(data: BaseModel) -> Response:
    """Return a response with the whole answer."""
    return Response(as_json(data), media_type="application/json")


def event_stream(parts: AsyncIterator[bytes]) -> Response:
    """Return a response that streams `event`s, with comments during pauses, so that clients do not time
    out."""
    return EventSourceResponse(parts, ping=PING_SECONDS, sep="\n")


def line_stream(parts: AsyncIterator[bytes]) -> Response:
    """Return a response that streams `line`s."""
    return EventSourceResponse(parts, ping=0, media_type=LINES)
