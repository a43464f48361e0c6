"""Errors as Ollama's clients read them."""

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from anespec.runtime.server.errors import ApiError


class OllamaError(BaseModel):
    """The error, in a sentence."""

    error: str


def ollama_error(error: ApiError) -> Response:
    """An error, with the status that fits."""
    return JSONResponse(
        OllamaError(error=told(error)).model_dump(), error.status, headers=dict(error.headers)
    )


def told(error: ApiError) -> str:
    """The sentence, with the field that is wrong where it does not name it."""
    if error.param is None or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"
