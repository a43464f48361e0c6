"""What stands before all endpoints: who is called, from which page, and what browsers are told."""

import secrets
from collections.abc import Collection, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anespec.runtime.server.endpoint import openai_error
from anespec.runtime.server.errors import ApiError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

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


class Guard:
    """Gives each request an id, refuses those that a browser was tricked into, and sets headers.

    A page of another site can reach this machine under a name of its own (DNS rebinding), so the Host header
    must be one of `hosts`; None is any, for a socket that no browser reaches. A page that says its origin
    must come from one of `origins` or from here.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        scope.setdefault("state", {})["request_id"] = request_id = f"req-{secrets.token_hex(8)}"

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                found["x-request-id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    found.setdefault(name, value)
                if origin is not None and origin in self._origins:
                    found["access-control-allow-origin"] = origin
                    found["cross-origin-resource-policy"] = "cross-origin"
                    found.add_vary_header("origin")
            await send(message)

        refusal = self._refusal(headers.get("host", ""), origin)
        await (self._app if refusal is None else openai_error(refusal))(scope, receive, send_guarded)

    def _refusal(self, host: str, origin: str | None) -> ApiError | None:
        if self._hosts is not None and host_name(host) not in self._hosts:
            return ApiError(
                403,
                "this server is not known by that host name; start it with --allow-host NAME",
                "host_refused",
            )
        if origin is not None and origin not in self._origins and urlsplit(origin).netloc != host:
            return ApiError(
                403,
                "pages of that origin may not call; start it with --allow-origin ORIGIN",
                "origin_refused",
            )
        return None


def host_name(host: str) -> str:
    """The name in a Host header, without its port; an empty one where it is malformed."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
