"""Requests' bodies: read within limits, then checked as what the endpoint says they are."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from anespec.manifests.formatting import printable
from anespec.runtime.server.errors import ApiError


class Body(BaseModel):
    """Base of all requests. Fields that nobody here knows are left alone, as clients send many."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)

_CURLS = ("", "application/x-www-form-urlencoded")


async def read_body(request: Request, kind: type[BodyT], most: int, as_curl: bool = False) -> BodyT:
    """The request's JSON, of at most `most` bytes, as a `kind`.

    With `as_curl` its content type may also be none, or what `curl -d` states, unless a browser sent it.

    Raises:
        ApiError: it is larger (413), no JSON by its content type (415), or no `kind` (400).
    """
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated != "application/json" and not (as_curl and stated in _CURLS and not _by_browser(request)):
        # Also what keeps other sites' pages out: without it a browser sends without asking first.
        raise ApiError(
            415, "the body must be JSON: send Content-Type: application/json", "unsupported_media_type"
        )
    data = await _read(request, most)
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _complaint(error) from None


def _by_browser(request: Request) -> bool:
    """Whether it has what browsers send along with a page's requests, and other programs leave out.

    No page can keep a browser from sending Origin with a POST to another site, nor Sec-Fetch-Site.
    """
    return any(name in request.headers for name in ("origin", "referer", "sec-fetch-site"))


async def _read(request: Request, most: int) -> bytes:
    too_large = ApiError(413, f"the request is larger than {most} bytes; send less", "request_too_large")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > most:
                raise too_large
    except ClientDisconnect:
        raise ApiError(400, "the request ended before its body did", "incomplete_body") from None
    return bytes(data)


def _complaint(error: ValidationError) -> ApiError:
    """The first thing that is wrong."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = printable(".".join(str(part) for part in first["loc"]))
    message = printable(first["msg"], 500)
    return ApiError(400, f"{place}: {message}" if place else message, "invalid_value", place or None)
