"""Refuse Ollama's endpoints that this daemon does not have, with an error in Ollama's format."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.ollama.answers import OllamaError, ollama_error
from anespec.runtime.server.openai.models_list import REASON as NO_EMBEDDINGS

_MANAGING = "models are managed by the command line; see anespec convert, serve, list and rm"

_REASONS = (
    ("POST", "/api/embed", NO_EMBEDDINGS),
    ("POST", "/api/embeddings", NO_EMBEDDINGS),
    ("POST", "/api/pull", _MANAGING),
    ("POST", "/api/push", _MANAGING),
    ("POST", "/api/create", _MANAGING),
    ("POST", "/api/copy", _MANAGING),
    ("DELETE", "/api/delete", _MANAGING),
)


def _refusing(reason: str) -> Callable[[Call[Any]], Awaitable[Response]]:
    async def refuse(call: Call[None]) -> Response:
        raise ApiError(501, reason, "not_implemented")

    return refuse


ENDPOINTS = tuple(
    Endpoint(
        method,
        path,
        "Not served.",
        _refusing(reason),
        refusal=ollama_error,
        refused=OllamaError,
        refuses=True,
    )
    for method, path, reason in _REASONS
)
