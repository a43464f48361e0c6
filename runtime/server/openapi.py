"""`/openapi.json`: the daemon's API, described from the endpoints themselves (OpenAPI 3.1)."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, Response

from anespec.runtime.server.endpoint import Call, Endpoint
from anespec.runtime.server.errors import ErrorAnswer

PATH = "/openapi.json"
_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFERENCES = "#/components/schemas/{model}"


def describing(endpoints: Sequence[Endpoint]) -> Endpoint:
    """The endpoint that describes these, and itself."""

    async def show(call: Call[None]) -> Response:
        """The description of all endpoints."""
        return JSONResponse(description([*endpoints, own], call.daemon.version, call.daemon.keys.needed))

    own = Endpoint("GET", PATH, "This description.", show, is_open=True)
    return own


def description(endpoints: Sequence[Endpoint], version: str, needs_key: bool) -> dict[str, Any]:
    """The OpenAPI document of some endpoints."""
    models: set[type[BaseModel]] = {ErrorAnswer}
    for endpoint in endpoints:
        models |= {model for model in (endpoint.body, endpoint.answer) if model is not None}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=_REFERENCES)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, needs_key)
        paths.setdefault(_PLACE.sub(r"{\1}", endpoint.path), {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "anespec", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, needs_key: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"{endpoint.serve.__name__}",
        "summary": endpoint.summary,
        "responses": {
            "200": _content("The answer.", endpoint.answer, streams=endpoint.streams),
            "4XX": _content("The request is refused.", ErrorAnswer),
            "5XX": _content("It cannot be served now.", ErrorAnswer),
        },
    }
    if needs_key and not endpoint.is_open:
        found["security"] = [{"key": []}]
    if places := _PLACE.findall(endpoint.path):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in places
        ]
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _of(endpoint.body)}},
        }
    return found


def _content(what: str, model: type[BaseModel] | None, streams: str | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {} if model is None else {"application/json": {"schema": _of(model)}}
    if streams is not None:
        content[streams] = {"schema": {"type": "string"}}
    return {"description": what, **({"content": content} if content else {})}


def _of(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCES.format(model=model.__name__)}
