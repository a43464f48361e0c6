"""Answers that are sent as they come: server-sent events, or JSON lines."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import BaseModel
from sse_starlette import EventSourceResponse
from starlette.responses import Response

PING_SECONDS = 15.0

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

DONE = b"data: [DONE]\n\n"


def event(data: BaseModel | Mapping[str, Any], name: str | None = None) -> bytes:
    """A server-sent event; a model's fields that are not set are left out."""
    head = f"event: {name}\n" if name is not None else ""
    return f"{head}data: {as_json(data)}\n\n".encode()


def line(data: BaseModel | Mapping[str, Any]) -> bytes:
    """A line of JSON."""
    return f"{as_json(data)}\n".encode()


def as_json(data: BaseModel | Mapping[str, Any]) -> str:
    """On one line, as JSON writes it."""
    if isinstance(data, BaseModel):
        return data.model_dump_json(exclude_unset=True, by_alias=True)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def json_answer(data: BaseModel) -> Response:
    """An answer that is sent at once."""
    return Response(as_json(data), media_type="application/json")


def event_stream(parts: AsyncIterator[bytes]) -> Response:
    """Send `event`s as they come, with comments in between so that a silence is not taken for the end."""
    return EventSourceResponse(parts, ping=PING_SECONDS, sep="\n")


def line_stream(parts: AsyncIterator[bytes]) -> Response:
    """Sends `line`s as they come."""
    return EventSourceResponse(parts, ping=0, media_type=LINES)
