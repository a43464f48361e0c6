"""Holds a daemon's answers against its own description while tests talk with it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Described:
    """An application whose answers are compared with what its description says of them.

    `strays` are the answers that no schema fits: JSON as a whole, JSON lines one by one.
    """

    def __init__(self, app: ASGIApp, description: dict[str, Any]) -> None:
        self._app = app
        self._description = description
        self._paths = [
            (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(path))), operations)
            for path, operations in description["paths"].items()
        ]
        self.strays: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation(scope) if scope["type"] == "http" else None
        if operation is None:
            await self._app(scope, receive, send)
            return
        begun: Message = {}
        data = bytearray()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.update(message)
            elif message["type"] == "http.response.body":
                data.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    self._compare(scope["path"], operation, begun, bytes(data))
            await send(message)

        await self._app(scope, receive, watched)

    def _operation(self, scope: Scope) -> dict[str, Any] | None:
        found = next((operations for path, operations in self._paths if path.fullmatch(scope["path"])), {})
        return found.get(scope["method"].lower())

    def _compare(self, path: str, operation: dict[str, Any], begun: Message, data: bytes) -> None:
        status = str(begun["status"])
        responses = operation["responses"]
        response = responses.get(status, responses.get(f"{status[0]}XX"))
        if response is None:
            self.strays.append(f"{path} answers with status {status}")
            return
        headers = {name.decode().lower(): value.decode() for name, value in begun["headers"]}
        media = headers.get("content-type", "").partition(";")[0]
        content = response.get("content", {})
        if "content" in response and media not in content:
            self.strays.append(f"{path} answers {status} with {media}")
        if media not in content or media == "text/event-stream":
            return
        schemas = [content["application/json"]["schema"]]
        if media != "application/json":
            schemas.append(responses["5XX"]["content"]["application/json"]["schema"])
        schema = {"anyOf": schemas, "components": self._description["components"]}
        for part in [data] if media == "application/json" else data.splitlines():
            for error in self._errors(schema, part):
                self.strays.append(f"{path} answers {status} with {part[:500]!r}: {error}")

    def _errors(self, schema: dict[str, Any], part: bytes) -> Iterator[str]:
        yield from (error.message for error in Draft202012Validator(schema).iter_errors(json.loads(part)))
