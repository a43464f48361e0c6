"""Check all requests before the endpoints: host, origin, and cross-site headers of browsers."""

import asyncio
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anespec.runtime.server.http.endpoint import openai_error
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import KeyRing, authorization_of
from anespec.runtime.server.http.listening import Hosts
from anespec.runtime.server.http.request_log import RECORD, RequestRecord
from anespec.runtime.server.http.shares import PreparationTime
from anespec.runtime.server.http.streams import unless

SECURITY_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": "default-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
)

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The allowed request ids of clients, which are written to logs and headers."""

PREFLIGHT_SECONDS = 600
ASKED_HEADERS = frozenset({"authorization", "content-type", "x-api-key", "x-request-id"})
_ASKED_PREFIXES = "(x-stainless|anthropic)-"
"""The prefixes of headers that the clients of OpenAI and Anthropic for browsers send with each request."""

SHOWN_HEADERS = "request-id, retry-after, x-request-id"

OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for the daemon's own page, and for an address that a user typed."""

DISCONNECT_EVENT = "gone"
"""The key in an ASGI scope's state of an asyncio.Event that is set when the connection ends."""

KEY_NEEDED = "key_needed"
"""The key in an ASGI scope's state of a bool: whether the connection serves only requests with an API key."""

CONNECTION_COUNTER = "take"
"""The key in an ASGI scope's state of a function that counts the connection for a tenant. It returns False if
the tenant has too many. None if no API keys are needed."""

_PORTS = MappingProxyType({"http": 80, "https": 443})
"""The ports that an origin or a Host header may leave out."""

PAGE_PATH = "/"
"""The only path that links on other sites may open, since opening the page has no effect."""


class Guard:
    """The ASGI middleware that gives each request an id, headers and a log line, and refuses cross-site
    requests.

    The Host header must be one of `hosts`. An Origin header must be one of `origins` or this daemon;
    cross-site requests without an Origin are refused by their Sec-Fetch-Site. While `ends` returns True,
    connections are closed after their answer. `declared` returns the declared path of a request's endpoint,
    for logs. Answers that are not counted elsewhere wait for their turn in `shares`. Answers of open paths
    and refusals have no tenant there, so a flood of them takes at most one share.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        origins: Collection[str],
        ends: Callable[[], bool],
        declared: Callable[[Scope], str],
        shares: PreparationTime,
        keys: KeyRing,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)
        self._ends = ends
        self._declared = declared
        self._shares = shares
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        record = RequestRecord(_request_id(headers), scope["method"])
        scope.setdefault("state", {})[RECORD] = record

        intake = Intake(receive)

        async def send_guarded(message: Message) -> None:
            if not record.is_counted:
                await self._count(record.tenant, message, scope["state"].get(DISCONNECT_EVENT))
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                # OpenAI's clients read the first, Anthropic's the second.
                found["x-request-id"] = found["request-id"] = record.request_id
                record.status = message["status"]
                for name, value in SECURITY_HEADERS.items():
                    found.setdefault(name, value)
                if self._origins:
                    found.add_vary_header("origin")
                if origin in self._origins:
                    found["access-control-allow-origin"] = origin
                    found["access-control-expose-headers"] = SHOWN_HEADERS
                    found["cross-origin-resource-policy"] = "cross-origin"
                if self._ends():
                    # A client that is still sending when the connection closes would not receive the answer.
                    await intake.finish()
                    found["connection"] = "close"
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                record.is_complete = True

        if not scope["path"].startswith("/"):
            # In a proxy request, http://HOST/PATH, the host of the URL takes precedence over the header.
            host, scope["path"] = _absolute(scope["path"])
        refusal = (
            _length_error(headers)
            or self._beyond_connections(scope["state"], headers)
            or self._refusal(scope["scheme"], host, origin)
            or self._cross_site_error(scope, headers)
        )
        try:
            if refusal is not None:
                record.endpoint = self._declared(scope)
                await openai_error(refusal)(scope, intake, send_guarded)
            elif origin in self._origins and _is_preflight(scope, headers):
                record.endpoint = self._declared(scope)
                await _allowed(headers)(scope, intake, send_guarded)
            else:
                await self._app(scope, intake, send_guarded)
        finally:
            record.log()

    async def _count(self, tenant: str, message: Message, gone: asyncio.Event | None) -> None:
        """Wait for an answer's turn before it starts, unless its connection ends; count the time of the
        answer."""
        if message["type"] == "http.response.body":
            self._shares.looked(tenant, len(message.get("body", b"")))
        elif gone is None or self._shares.is_turn_to_look(tenant):
            await self._shares.look(tenant)
        else:
            await unless(gone, self._shares.look(tenant))

    def _beyond_connections(self, state: Mapping[str, Any], headers: Headers) -> ApiError | None:
        """Return an error if the request's key, or its address without a key, has too many connections."""
        take = state.get(CONNECTION_COUNTER)
        if take is None:
            return None
        tenant = self._keys.tenant(authorization_of(headers))
        if tenant is None and not state[KEY_NEEDED]:
            return None
        if tenant is not None and take(tenant):
            return None
        whose = "from your address without a key" if tenant is None else "with your key"
        return ApiError(
            503,
            f"there are too many connections {whose}; close those that are not needed",
            "too_many_connections",
            headers={"retry-after": "1", "connection": "close"},
        )

    def _refusal(self, scheme: str, host: str, origin: str | None) -> ApiError | None:
        if host not in self._hosts:
            return ApiError(
                403,
                "this server is not known by that host name; start the server with --allow-host NAME",
                "host_refused",
            )
        if origin is not None and origin not in self._origins and not _is_same_origin(origin, scheme, host):
            return _origin_refused(
                "pages of that origin may not call; start the server with --allow-origin ORIGIN"
            )
        return None

    def _cross_site_error(self, scope: Scope, headers: Headers) -> ApiError | None:
        """Return an error for fetches of another site's page without an Origin header: images, scripts,
        frames, links.

        A link to the daemon's own page is allowed.
        """
        site = headers.get("sec-fetch-site")
        if site is None or site in OWN_SITES or headers.get("origin") in self._origins:
            return None
        if scope["method"] == "GET" and scope["path"] == PAGE_PATH and _is_visit(headers):
            return None
        return _origin_refused(
            "pages of another site may not call; start the server with --allow-origin ORIGIN, and ask with "
            "fetch()"
        )


class Intake:
    """The receiver of a request's body; it notes whether the body is complete."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def __call__(self) -> Message:
        """Return the next part of the body, or the disconnect message."""
        message = await self._receive()
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def finish(self) -> None:
        """Discard the rest of the body; the connection's limits bound the time."""
        while not self._ended:
            await self()


def _origin_refused(message: str) -> ApiError:
    return ApiError(403, message, "origin_refused")


def _is_visit(headers: Headers) -> bool:
    """Return whether a browser opens the address as a page of its own, not in a frame."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _length_error(headers: Headers) -> ApiError | None:
    """Return an error for a body with two lengths, which allow request smuggling through proxies."""
    if "transfer-encoding" not in headers or "content-length" not in headers:
        return None
    return ApiError(
        400,
        "the body's length is given twice; send either Content-Length or Transfer-Encoding",
        "malformed_request",
        headers={"connection": "close"},
    )


def _request_id(headers: Headers) -> str:
    """Return the client's own id if it is safe for logs, else a new one."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"


def _absolute(target: str) -> tuple[str, str]:
    """Return the host and path of an absolute target; for a malformed one no host, and a path that does not
    exist."""
    try:
        found = urlsplit(target)
    except ValueError:
        return "", target
    return (found.netloc, found.path or "/") if found.scheme in ("http", "https") else ("", target)


def _is_same_origin(origin: str, scheme: str, host: str) -> bool:
    """Return whether an origin is the page of this host, reached by the same scheme and port."""
    try:
        found, own = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        ports = [part.port or _PORTS.get(part.scheme) for part in (found, own)]
    except ValueError:
        return False
    if origin.lower() != f"{found.scheme}://{found.netloc}".lower() or "@" in found.netloc:
        return False  # not an origin at all
    names = [(part.scheme, part.hostname) for part in (found, own)]
    return bool(found.hostname) and names[0] == names[1] and ports[0] == ports[1]


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def _allowed(headers: Headers) -> Response:
    """Return the answer to a browser's preflight request for a page of another origin."""
    asked = {name.strip().lower() for name in headers.get("access-control-request-headers", "").split(",")}
    allowed = ASKED_HEADERS | {name for name in asked if re.fullmatch(rf"{_ASKED_PREFIXES}[a-z-]+", name)}
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": ", ".join(sorted(allowed)),
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        },
    )
