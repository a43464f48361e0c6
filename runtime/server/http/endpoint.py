"""Declare endpoints: path, request and handler. Routes and the API's description are derived from them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from anespec.runtime.engine.requests import Principal
from anespec.runtime.server.daemon import Daemon
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.errors import ApiError, ErrorAnswer
from anespec.runtime.server.http.shares import Share

BodyT = TypeVar("BodyT", bound=Body | None)


@dataclass(frozen=True)
class Call(Generic[BodyT]):
    """An admitted request to an endpoint, with its parsed body of `size` bytes.

    `share` counts its preparation time (see shares.py); `take` counts the bytes that are held for it.
    """

    daemon: Daemon
    request: Request
    body: BodyT
    caller: Principal
    share: Share
    take: Callable[[int], None]
    size: int = 0


def openai_error(error: ApiError) -> Response:
    """Return an error in OpenAI's format."""
    return JSONResponse(error.answer().model_dump(), error.status, headers=dict(error.headers))


@dataclass(frozen=True)
class Endpoint:
    """A path and method with its handler.

    `body` is the type of the request's body, None if it has none. `answer` is the type of the response, None
    if it is not JSON. `streams` is the media type of a streamed answer. `is_open`: no key is needed, and the
    endpoint is also served while the daemon starts or ends. `refusal` writes an error in the format of the
    endpoint's API, whose type is `refused`; with `refuses` every response is an error. `as_curl`: the content
    type need not be JSON (see `read_body`). `query` are the allowed names in the query string. `is_kept`:
    clients cache the response, and get 304 if it has not changed.
    """

    method: str
    path: str
    summary: str
    serve: Callable[[Call[Any]], Awaitable[Response]]
    body: type[Body] | None = None
    answer: type[BaseModel] | None = None
    is_open: bool = False
    is_kept: bool = False
    streams: str | None = None
    refusal: Callable[[ApiError], Response] = openai_error
    refused: type[BaseModel] = ErrorAnswer
    refuses: bool = False
    as_curl: bool = False
    query: tuple[str, ...] = ()
