"""Serve `/openapi.json`: a description of the daemon's API (OpenAPI 3.1), derived from its endpoints."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaValue, models_json_schema
from starlette.responses import JSONResponse, Response

from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ErrorAnswer

PATH = "/openapi.json"
_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
_WORD = re.compile(r"\w+")
_REFERENCES = "#/components/schemas/{model}"

_References = Mapping[object, JsonSchemaValue]


def describing(endpoints: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint that describes these endpoints and itself."""

    @cache
    def written(version: str, needs_key: bool) -> bytes:
        # Cached, since building it takes long, and any client may request it.
        return bytes(JSONResponse(description([*endpoints, own], version, needs_key)).body)

    async def show(call: Call[None]) -> Response:
        """Return the description of all endpoints."""
        found = written(call.daemon.version, call.daemon.keys.needed)
        return Response(found, media_type=JSONResponse.media_type)

    own = Endpoint("GET", PATH, "This description.", show, is_open=True)
    return own


def description(endpoints: Sequence[Endpoint], version: str, needs_key: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the endpoints."""
    models: set[type[BaseModel]] = {ErrorAnswer}
    for endpoint in endpoints:
        models |= {model for model in (endpoint.body, endpoint.answer, endpoint.refused) if model is not None}
    ordered = sorted(models, key=lambda model: (model.__name__, model.__module__))
    found, schemas = models_json_schema(
        [(model, "validation") for model in ordered], ref_template=_REFERENCES
    )
    references: _References = {model: reference for (model, _), reference in found.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, references, needs_key)
        paths.setdefault(_PLACE.sub(r"{\1}", endpoint.path), {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "anespec", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(endpoint: Endpoint, references: _References, needs_key: bool) -> dict[str, Any]:
    answer = references[endpoint.answer] if endpoint.answer is not None else None
    refused = {"application/json": {"schema": references[endpoint.refused]}}
    found: dict[str, Any] = {
        "operationId": "_".join([endpoint.method.lower(), *_WORD.findall(_PLACE.sub(r"\1", endpoint.path))]),
        "summary": endpoint.summary,
        "responses": {
            **({} if endpoint.refuses else {"200": _answered(answer, endpoint.streams)}),
            "4XX": {"description": "The request was refused.", "content": refused},
            "5XX": {"description": "The request cannot be served now.", "content": refused},
        },
    }
    if endpoint.is_kept:
        found["responses"]["304"] = {"description": "The client's copy is still current."}
    if endpoint.refused is not ErrorAnswer:
        own = {"application/json": {"schema": references[ErrorAnswer]}}
        found["responses"]["403"] = {"description": "Pages of that origin may not call.", "content": own}
    if needs_key and not endpoint.is_open:
        found["security"] = [{"key": []}, {"x-api-key": []}]
    parameters = [(name, "path") for name in _PLACE.findall(endpoint.path)]
    parameters += [(name, "query") for name in endpoint.query]
    if parameters:
        found["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
            for name, place in parameters
        ]
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[endpoint.body]}},
        }
    return found


def _answered(reference: JsonSchemaValue | None, streams: str | None) -> dict[str, Any]:
    content: dict[str, Any] = {} if reference is None else {"application/json": {"schema": reference}}
    if streams is not None:
        content[streams] = {"schema": {"type": "string"}}
    return {"description": "The answer.", **({"content": content} if content else {})}
