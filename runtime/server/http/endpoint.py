"""An endpoint: its path, its request and its handler; routes and the API's description are made of these."""

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
    """One request to an endpoint, let in and read: of `size` bytes.

    `share` counts what it takes of the time that all share, `take` the bytes that are held for it.
    """

    daemon: Daemon
    request: Request
    body: BodyT
    caller: Principal
    share: Share
    take: Callable[[int], None]
    size: int = 0


def openai_error(error: ApiError) -> Response:
    """An error as OpenAI's clients read it."""
    return JSONResponse(error.answer().model_dump(), error.status, headers=dict(error.headers))


@dataclass(frozen=True)
class Endpoint:
    """One path and method.

    `body` is what a request must be, None where it has none; `answer` is what comes back, None for what is
    no JSON; `streams` is the media type of an answer that may come in parts. `is_open`: no key is needed, and
    it is served also while the daemon starts or ends. `refusal` says an error in the words of the API that
    it belongs to, as a `refused`; with `refuses` nothing else comes back. `as_curl`: a body need not be
    called JSON (see `read_body`). `query` are the names that its query string may
    have. `is_kept`: clients keep what came, and are told where it is the same (304).
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
