"""Read the bodies of requests within limits, and validate them."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_wrap_validator_function
from starlette.requests import ClientDisconnect, Request

from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.shares import Share
from anespec.system.formatting import printable

MOST_VALUES = 1 << 18
"""The most JSON values of a request: as many token ids as any context holds."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A JSON string. An unterminated one extends to the end of the text, so that no byte is matched twice."""

_TYPE = re.compile(r"str|int|float|bool|\w+\[.*\]")
"""Pydantic's names for the types of a union."""

_LISTS = ("list", "tuple", "set", "frozenset", "dict")

_TAKE_NULL = ("nullable", "any", "function-wrap")
"""The types of schemas that take null as it is, or were adapted already."""


def _adapt(schema: Any) -> None:
    """Change a schema so that lists stop at their first invalid element, and null means an absent field."""
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            _adapt(part)
    if not isinstance(schema, dict):
        return
    if schema.get("type") in _LISTS:
        schema["fail_fast"] = True
    if schema.get("type") == "default" and schema["schema"].get("type") not in _TAKE_NULL:
        schema["schema"] = no_info_wrap_validator_function(_default_for_null(schema), schema["schema"])


def _default_for_null(field: dict[str, Any]) -> Callable[[Any, ValidatorFunctionWrapHandler], Any]:
    make = field.get("default_factory") or (lambda: field["default"])

    def read(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        return make() if value is None else handler(value)

    return read


class BodyRoom:
    """The limit for the bytes of all bodies of a tenant whose requests are being served.

    There are many connections, and if each sent a body of the largest size, they would exceed the machine's
    memory.
    """

    def __init__(self, most: int) -> None:
        """Allow at most `most` bytes for each tenant."""
        self._most = most
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def of(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Yield a function for one request, to call with each number of received bytes.

        The function raises ApiError (429) if the limit is exceeded.
        """
        mine = 0

        def take(count: int) -> None:
            nonlocal mine
            if self._taken[tenant] + count > self._most:
                message = (
                    f"your requests have more than {self._most} bytes together; wait until some have ended"
                )
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
    """The base class of all request bodies.

    Unknown fields are ignored, since clients send many. Null means that an optional field is absent.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a BaseModel, adapted.

        Without a stop at the first, millions of invalid elements would each get an error, which takes
        gigabytes.
        """
        schema = handler(source)
        _adapt(schema)
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
    """Read a request's JSON of at most `most` bytes; return it as a `kind`, and its size in bytes.

    `take` is called with each number of received bytes (see BodyRoom). The time of reading and of the next
    step is charged to `share`. With `as_curl` the content type may also be missing, or the one that `curl -d`
    sends, unless a browser sent the request.

    Raises:
        ApiError: the body is too large or has too many values (413), its content type is not JSON (415), or
        it is not a valid `kind` (400); or the error of `take`.
    """
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated != "application/json" and not (as_curl and stated in _CURLS and not _by_browser(request)):
        # This also keeps out pages of other sites: with another content type, browsers send no preflight
        # request.
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
    """Return the number of values in a JSON text, or one more, without parsing it.

    Parsing millions of small values would take a hundred times their bytes. A string of any length is one
    value.
    """
    found = _count_marks(data)
    # Every string is a value or a key, so this many strings mean too many values.
    strings = (data.count(b'"') - data.count(b'\\"')) // 2
    if found <= MOST_VALUES or strings > 2 * MOST_VALUES:
        return found
    return _count_marks(_STRING.sub(b"", data))


def _count_marks(data: bytes) -> int:
    return sum(data.count(mark) for mark in (b",", b"[", b"{"))


def _by_browser(request: Request) -> bool:
    """Return whether a request has headers that only browsers send.

    No page can prevent a browser from sending Origin with a cross-site POST, or from sending Sec-Fetch-Site.
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
    # pydantic adds the types of a union to the location; they are not part of the field's path.
    parts = [str(part) for part in found["loc"] if not _TYPE.fullmatch(str(part))]
    place, message = printable(".".join(parts)), printable(found["msg"], 500)
    return ApiError(400, f"{place}: {message}" if place else message, "invalid_value", place or None)
