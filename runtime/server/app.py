"""Build the daemon's ASGI application: the endpoints as routes, behind the guards."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from anespec.runtime.engine.requests import Principal
from anespec.runtime.server.daemon import Daemon, Phase
from anespec.runtime.server.http.bodies import BodyRoom, read_body
from anespec.runtime.server.http.endpoint import Call, Endpoint, openai_error
from anespec.runtime.server.http.errors import ApiError, api_error
from anespec.runtime.server.http.guards import DISCONNECT_EVENT, Guard
from anespec.runtime.server.http.keys import authorization_of
from anespec.runtime.server.http.listening import Hosts
from anespec.runtime.server.http.request_log import CLIENT_GONE, record_of
from anespec.system.errors import AnespecError

_log = logging.getLogger("anespec.serve")

LARGEST_BODIES = 16
"""How many bodies of the largest size a tenant may send at a time; that is thousands of usual ones."""


def build_app(daemon: Daemon, endpoints: Sequence[Endpoint]) -> Starlette:
    """Return the application; raise ValueError if two endpoints have the same path and method."""
    options = daemon.options
    paths = [(endpoint.method, endpoint.path) for endpoint in endpoints]
    if len(set(paths)) < len(paths):
        raise ValueError("two endpoints have the same path and method")
    bodies = BodyRoom(LARGEST_BODIES * options.body_bytes)
    app = Starlette(
        routes=[
            Route(endpoint.path, _Serving(daemon, endpoint, bodies), methods=[endpoint.method])
            for endpoint in endpoints
        ],
        middleware=[
            Middleware(
                Guard,
                hosts=Hosts.of(options),
                origins=options.allow_origin,
                ends=lambda: daemon.lifecycle.phase is Phase.DRAINING,
                declared=_declared_path,
                shares=daemon.shares,
                keys=daemon.keys,
            )
        ],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return _wrong_method(request)
    known = {404: "there is no such path; see /openapi.json"}
    return openai_error(
        ApiError(error.status_code, known.get(error.status_code, error.detail), headers=error.headers or {})
    )


def _routes(scope: Scope) -> list[Route]:
    """Return the routes that match a request's path, for any method."""
    routes = scope["app"].routes
    return [each for each in routes if isinstance(each, Route) and each.matches(scope)[0] is not Match.NONE]


def _declared_path(scope: Scope) -> str:
    """Return the path of a request as its endpoint declares it; empty if there is no such endpoint."""
    return next((route.path for route in _routes(scope)), "")


def _wrong_method(request: Request) -> Response:
    """Return the 405 response with the allowed methods of a path. Each method has its own route."""
    record_of(request.scope).endpoint = _declared_path(request.scope)
    methods: set[str] = set()
    for route in _routes(request.scope):
        methods |= route.methods or set()
    allowed = ", ".join(sorted(methods))
    message = f"this path accepts only {allowed}"
    return openai_error(ApiError(405, message, "method_not_allowed", headers={"allow": allowed}))


class _Serving:
    """The ASGI application of an endpoint: it admits, reads and serves requests, and reports errors.

    A request counts as being answered until its last byte was sent.
    """

    def __init__(self, daemon: Daemon, endpoint: Endpoint, bodies: BodyRoom) -> None:
        self._daemon = daemon
        self._endpoint = endpoint
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, status = Request(scope, receive), CLIENT_GONE
        record = record_of(scope)
        record.endpoint, record.quiet = self._endpoint.path, self._endpoint.body is None
        try:
            if self._endpoint.is_open:
                status = await self._answer(request, scope, receive, send)
            else:
                with self._daemon.lifecycle.answer():
                    status = await self._answer(request, scope, receive, send)
        except ApiError as error:
            status = error.status
            await self._endpoint.refusal(error)(scope, receive, send)
        finally:
            self._daemon.metrics.answered(self._endpoint.path, status, record.tenant)

    async def _answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> int:
        with ExitStack() as held:
            try:
                response = await self._serve(request, held)
            except Exception as error:
                refused = api_error(error)
                if refused.status == 500:
                    self._log_failure(error)
                response = self._endpoint.refusal(refused)
            await response(scope, receive, send)
            return response.status_code

    def _log_failure(self, error: Exception) -> None:
        """Log an exception: an AnespecError by its message alone, any other one with its traceback."""
        cause = error.__cause__ or error
        is_ours = isinstance(error, AnespecError) and isinstance(cause, AnespecError)
        said = f": {cause}" if is_ours else ""
        method, path = self._endpoint.method, self._endpoint.path
        _log.error("%s %s failed%s", method, path, said, exc_info=None if is_ours else error)

    async def _serve(self, request: Request, held: ExitStack) -> Response:
        """Return the response; `held` keeps what the request needs until the response was sent."""
        daemon, endpoint = self._daemon, self._endpoint
        if not endpoint.is_open and daemon.lifecycle.phase is Phase.STARTING:
            doing = f" ({daemon.lifecycle.loading})" if daemon.lifecycle.loading else ""
            raise ApiError(
                503,
                f"the model is being loaded{doing}; try again soon",
                "loading",
                headers={"retry-after": "2"},
            )
        caller = Principal() if endpoint.is_open else daemon.keys.caller(authorization_of(request.headers))
        record = record_of(request.scope)
        record.key, record.tenant = caller.name, caller.tenant
        caller = replace(caller, seconds=daemon.options.request_seconds)
        take = held.enter_context(self._bodies.of(caller.tenant))
        gone = request.scope["state"].get(DISCONNECT_EVENT)
        if endpoint.body is None:
            share = held.enter_context(daemon.shares.looking(caller.tenant, gone))
            return await endpoint.serve(Call(daemon, request, None, caller, share, take))
        share = held.enter_context(daemon.shares.of(caller.tenant, gone))
        record.is_counted = True
        as_curl, most = endpoint.as_curl, daemon.options.body_bytes
        try:
            body, size = await read_body(request, endpoint.body, most, take, share, as_curl)
            return await endpoint.serve(Call(daemon, request, body, caller, share, take, size))
        finally:
            share.pause()  # a client that reads its answer slowly, or its refusal, delays nobody
