"""Requests' bodies: read within limits, then checked as what the endpoint says they are."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema
from starlette.requests import ClientDisconnect, Request

from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.shares import Share
from anespec.system.formatting import printable

MOST_VALUES = 1 << 18
"""Of one request, in lists and objects: as many token ids as any context holds."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""One that does not end goes to the end, so that nothing is looked at twice."""

_TYPE = re.compile(r"str|int|float|bool|\w+\[.*\]")
"""Pydantic's names for the types of a union."""

_LISTS = ("list", "tuple", "set", "frozenset", "dict")


def _fail_fast(schema: Any) -> None:
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            _fail_fast(part)
    if isinstance(schema, dict) and schema.get("type") in _LISTS:
        schema["fail_fast"] = True


class BodyRoom:
    """The bytes of all bodies that a tenant has sent, as long as their requests are being served.

    Connections are many, and each may bring a body that is as large as one may be: all together are more
    than the machine's memory.
    """

    def __init__(self, most: int) -> None:
        """At most so many bytes of each tenant."""
        self._most = most
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def of(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """While a request is served; call the result with each count of bytes that have come.

        That raises ApiError (429) where there is no room for them.
        """
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self._taken[tenant] + count > self._most:
                message = f"your requests have more than {self._most} bytes together; let some end first"
                raise ApiError(429, message, "too_many_bytes", headers={"retry-after": "1"})
            mine += count
            self._taken[tenant] += count

        try:
            yield take
        finally:
            self._taken[tenant] -= mine
            if not self._taken[tenant]:
                del self._taken[tenant]


class Body(BaseModel):
    """Base of all requests. Unknown fields are ignored, as clients send many."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As a BaseModel's, but that the first wrong element of a list ends it.

        Otherwise each of millions is noted with its own error, which takes gigabytes.
        """
        schema = handler(source)
        _fail_fast(schema)
        return schema


BodyT = TypeVar("BodyT", bound=Body)

_CURLS = ("", "application/x-www-form-urlencoded")


async def read_body(
    request: Request,
    kind: type[BodyT],
    most: int,
    take: Callable[[int], None],
    share: Share,
    as_curl: bool = False,
) -> tuple[BodyT, int]:
    """The request's JSON, of at most `most` bytes, as a `kind`, and how many bytes it has.

    `take` is called with the number of received bytes (see BodyRoom); the time of reading and of the next
    step is charged to `share`. With `as_curl` its content type may also be none, or what `curl -d` states,
    unless a browser sent it.

    Raises:
        ApiError: it is larger or has more values than may be (413), no JSON by its content type (415), or no
            `kind` (400); or what `take` raises.
    """
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated != "application/json" and not (as_curl and stated in _CURLS and not _by_browser(request)):
        # Also what keeps other sites' pages out: without it a browser sends without asking first.
        raise ApiError(
            415, "the body must be JSON: send Content-Type: application/json", "unsupported_media_type"
        )
    data = await _read(request, most, take)
    await share.turn()
    if count_values(data) > MOST_VALUES:
        raise ApiError(
            413, f"the request has more than {MOST_VALUES} values; send fewer", "request_too_large"
        )
    try:
        return kind.model_validate_json(data), len(data)
    except ValidationError as error:
        raise _complaint(error) from None


def count_values(data: bytes) -> int:
    """Return the number of values in a JSON text, or up to one more, without parsing it.

    Text of any length is one value, but each of millions of small ones costs a hundred times its bytes.
    """
    found = _count_marks(data)
    # Every string is a value or its name, so with so many there are too many values, whatever is in them.
    strings = (data.count(b'"') - data.count(b'\\"')) // 2
    if found <= MOST_VALUES or strings > 2 * MOST_VALUES:
        return found
    return _count_marks(_STRING.sub(b"", data))


def _count_marks(data: bytes) -> int:
    return sum(data.count(mark) for mark in (b",", b"[", b"{"))


def _by_browser(request: Request) -> bool:
    """Return whether a request has headers that only browsers send.

    No page can keep a browser from sending Origin with a POST to another site, nor Sec-Fetch-Site.
    """
    return any(name in request.headers for name in ("origin", "referer", "sec-fetch-site"))


async def _read(request: Request, most: int, take: Callable[[int], None]) -> bytes:
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
            take(len(part))
    except ClientDisconnect:
        raise ApiError(400, "the request ended before its body did", "incomplete_body") from None
    return bytes(data)


def _complaint(error: ValidationError) -> ApiError:
    """Return the first validation error, except that a list that is too long is always reported."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    found = next((each for each in errors if each["type"] == "too_long"), errors[0])
    # Which of several types a value was tried as is no part of where it stands.
    parts = [str(part) for part in found["loc"] if not _TYPE.fullmatch(str(part))]
    place, message = printable(".".join(parts)), printable(found["msg"], 500)
    return ApiError(400, f"{place}: {message}" if place else message, "invalid_value", place or None)
