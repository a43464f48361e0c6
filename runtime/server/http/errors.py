"""Define the errors for clients: OpenAI's error object, and the HTTP status."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pydantic import BaseModel

from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.engine.service import ClosedError
from anespec.system.errors import (
    GRAMMAR_FAILED,
    LONGER_CONTEXT,
    AnespecError,
    GoldenGateError,
    GrammarError,
    PromptTooLongError,
    RequestError,
)

_NONE: Mapping[str, str] = MappingProxyType({})


class ErrorFacts(BaseModel):
    """The content of an error. `code` is for programs; `param` is the invalid field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """OpenAI's error object."""

    error: ErrorFacts


@dataclass
class ApiError(Exception):
    """A request is refused. `code` is for programs; `param` is the invalid field."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE)

    @property
    def kind(self) -> str:
        """Return OpenAI's `type` of the error."""
        return _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    @property
    def sentence(self) -> str:
        """Return the message, with the invalid field unless the message names it."""
        if self.param is None or self.param in self.message:
            return self.message
        return f"{self.param}: {self.message}"

    def answer(self) -> ErrorAnswer:
        """Return OpenAI's error object."""
        return ErrorAnswer(
            error=ErrorFacts(message=self.message, type=self.kind, param=self.param, code=self.code)
        )


_KINDS = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        503: "overloaded_error",
    }
)


@contextmanager
def grammar_named(param: str | None) -> Iterator[None]:
    """Add to the error of a grammar the field that the grammar comes from."""
    try:
        yield
    except GrammarError as error:
        raise replace(api_error(error), param=param) from None


def ending() -> ApiError:
    """Return the error for a request that arrives while the daemon ends."""
    message = "the server is shutting down; try again when it is back"
    return ApiError(503, message, "shutting_down", headers={"retry-after": "5"})


def out_of_time() -> ApiError:
    """Return the error for a request that waited until its time limit."""
    message = "the request's time limit passed before its answer began; try again later"
    return ApiError(503, message, "timeout", headers={"retry-after": "5"})


def without_paths(text: str, instead: str) -> str:
    """Return a message about a failure that is safe for clients: the text, or `instead` if it contains a
    path.

    Paths of the server are only logged. Any word with a path separator counts as a path.
    """
    return instead if os.sep in text else text


def api_error(error: Exception) -> ApiError:
    """Return the error for the client; without details if only the server's operator can fix it."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            wait = max(1, round(error.retry_after))
            return ApiError(429, str(error), "queue_full", headers={"retry-after": str(wait)})
        case PromptTooLongError():
            said = str(error).replace(LONGER_CONTEXT, f"anespec serve MODEL {LONGER_CONTEXT}")
            return ApiError(400, said, "context_length_exceeded", "messages")
        case GrammarError():
            return ApiError(400, str(error), "invalid_grammar")
        case AnespecError() if str(error).startswith(GRAMMAR_FAILED):
            return ApiError(400, str(error), "invalid_grammar")
        case RequestError():
            return ApiError(400, str(error), "invalid_value")
        case GoldenGateError() | AnespecError(__cause__=GoldenGateError()):
            message = "the model computes wrong results, so it is not used; the server's log says why"
            return ApiError(503, message, "model_wrong")
        case ClosedError():
            return ending()
        case AnespecError():
            public = without_paths(str(error), "the model could not answer; the server's log says why")
            return ApiError(500, public, "model_failed")
        case _:
            return ApiError(500, "the server failed; its log says why", "internal_error")
