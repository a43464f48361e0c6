"""Limit connections: the time to send a request and to read an answer, and the number of connections.

uvicorn waits without limit for the first bytes of a request, for its body, and for a client that reads
nothing. Here each connection checks itself periodically, and closes if the client is too slow.
"""

import asyncio
import contextlib
import json
import logging
import socket
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from anespec.runtime.server.http.endpoint import openai_error
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.guards import CONNECTION_COUNTER, DISCONNECT_EVENT, KEY_NEEDED, Intake

LONGEST_HEAD = 32 << 10
"""The most bytes of a request's line and headers."""

SHORTEST_CHECK_SECONDS = 0.05
"""The least seconds between two checks of a connection."""

SILENT_SECONDS = 2.0
"""Seconds for the first request on a connection, if its address has too many connections without a key."""

LEAST_READ_BYTES = 48 << 10
"""The least bytes of an answer that a client must read in its time: the difference between the marks where
writing pauses and resumes."""

_log = logging.getLogger("anespec.serve.connections")
_log.setLevel(logging.ERROR)  # uvicorn warns of each malformed request, so anybody could fill the log


@dataclass(frozen=True)
class Patience:
    """The limits of connections: `most` at a time, seconds to send a request, and seconds to read an answer.

    If a request is answered before it was sent completely, `unread` further bytes are accepted. `keyless` is
    the most connections without a key from one address, None for any number. Beyond it only requests with a
    key are served, and a silent connection is closed soon. If all connections are taken, the oldest one
    without a key is closed for a new one. `keyed` is the most connections of one key.
    """

    most: int
    receive_seconds: float
    send_seconds: float
    unread: int
    keyless: int | None = None
    keyed: int = sys.maxsize

    @property
    def look(self) -> float:
        """Return the seconds between two checks of a connection."""
        return max(SHORTEST_CHECK_SECONDS, min(1.0, self.receive_seconds / 4, self.send_seconds / 4))


class ServerConfig(uvicorn.Config):
    """The configuration of a server: its application, and the limits and current sets of its connections."""

    def __init__(self, app: Any, patience: Patience, **others: Any) -> None:
        super().__init__(app, http=Connection, h11_max_incomplete_event_size=LONGEST_HEAD, **others)
        self.patience = patience
        self.keyless: Counter[str] = Counter()
        """The connections that have not sent a key yet, by address."""
        self.keyed: Counter[str] = Counter()
        """The connections whose last request had a key, by the key's tenant."""
        self.unkeyed: dict[Connection, None] = {}
        """The connections that have not sent a key yet, the oldest first, without the unwanted ones."""
        self.unwanted: dict[Connection, None] = {}
        """The unwanted connections, beyond the limit of their address without a key, the oldest first."""


class Connection(H11Protocol):
    """A connection with these limits; see uvicorn's H11Protocol."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        assert isinstance(config, ServerConfig)
        super().__init__(config, server_state, app_state, _loop)
        self._patience = config.patience
        self._holders = config
        self._keyless_at: str | None = None
        self._tenant: str | None = None
        self._key_needed = False
        self._gone = asyncio.Event()
        take = None if self._patience.keyless is None else self._take
        self.app_state = {
            **self.app_state,
            DISCONNECT_EVENT: self._gone,
            KEY_NEEDED: False,
            CONNECTION_COUNTER: take,
        }
        self._looking: asyncio.TimerHandle | None = None
        self._slow_since: float | None = None
        self._stuck_since: float | None = None
        self._left = 0
        self._unread = 0
        self.logger = _log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the connection; if there are too many, all its requests are refused."""
        super().connection_made(transport)
        beyond = len(self.connections) - self._patience.most
        if beyond > self._patience.most:
            transport.abort()
            return
        if beyond > 0 and not self._make_room():
            self.app = _refuse
        self._count_keyless(self.client[0] if self.client else None)
        _enable_keep_alive(transport.get_extra_info("socket"), self._patience.send_seconds)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and stop counting the connection."""
        if self._looking is not None:
            self._looking.cancel()
        self._gone.set()
        self._stop_counting()
        super().connection_lost(exc)
        # After an error uvicorn leaves the timer running.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            self._unread += len(data)
            if self._unread > self._patience.unread:
                self.transport.abort()
                return
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer that the bytes are not a request; called while the parser's error is handled."""
        error = sys.exc_info()[1]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # A response is being sent, so no other can be sent now.
            self.transport.abort()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # The handler of the current request has no client any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        answer = ApiError(status, "this is not a valid HTTP request", "malformed_request").answer()
        data = json.dumps(answer.model_dump()).encode()
        head = h11.Response(
            status_code=status,
            headers=[
                ("content-type", "application/json"),
                ("content-length", str(len(data))),
                ("connection", "close"),
            ],
        )
        for event in (head, h11.Data(data=data), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Start the timers of the next request."""
        self._slow_since = None
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Resume writing: the client has read most of the buffer."""
        self._stuck_since = None
        super().resume_writing()

    def _look(self) -> None:
        """Close the connection if the client took too long, else schedule the next check."""
        now, left = self.loop.time(), self.transport.get_write_buffer_size()
        self._slow_since = (self._slow_since or now) if self._is_receiving() else None
        if not self._is_stuck(left) or left <= self._left - LEAST_READ_BYTES:
            self._stuck_since = None
        if self._stuck_since is None:
            self._stuck_since, self._left = (now if self._is_stuck(left) else None), left
        patience = self._patience.receive_seconds
        if self._key_needed and self.cycle is None:
            patience = min(patience, SILENT_SECONDS)
        slow = self._slow_since is not None and now - self._slow_since > patience
        stuck = self._stuck_since is not None and now - self._stuck_since > self._patience.send_seconds
        if slow or stuck:
            self.transport.abort()
            return
        self._looking = self.loop.call_later(self._patience.look, self._look)

    def _count_keyless(self, address: str | None) -> None:
        """Count the connection for its address as one without a key; a Unix socket has no address."""
        most = self._patience.keyless
        if most is None or not address:
            return
        self._keyless_at = address
        self._holders.keyless[address] += 1
        if self._holders.keyless[address] > most:
            self._key_needed = self.app_state[KEY_NEEDED] = True
            self._holders.unwanted[self] = None
        else:
            self._holders.unkeyed[self] = None

    def _take(self, tenant: str) -> bool:
        """Count the connection for a key's tenant; if the tenant has too many, change nothing and return
        False."""
        if tenant != self._tenant:
            if self._holders.keyed[tenant] >= self._patience.keyed:
                return False
            self._stop_counting()
            self._tenant = tenant
            self._holders.keyed[tenant] += 1
        return True

    def _stop_counting(self) -> None:
        """Stop counting the connection for its address or key."""
        for counts, holder in (
            (self._holders.keyless, self._keyless_at),
            (self._holders.keyed, self._tenant),
        ):
            if holder is not None:
                counts[holder] -= 1
                if not counts[holder]:
                    del counts[holder]
        self._keyless_at = self._tenant = None
        self._key_needed = self.app_state[KEY_NEEDED] = False
        self._holders.unwanted.pop(self, None)
        self._holders.unkeyed.pop(self, None)

    def _make_room(self) -> bool:
        """Close the oldest connection without a key, unwanted ones first; return whether there was one."""
        oldest = next(chain(self._holders.unwanted, self._holders.unkeyed), None)
        if oldest is None:
            return False
        oldest._stop_counting()
        oldest.transport.abort()
        return True

    def _is_receiving(self) -> bool:
        """Return whether a request is incomplete; a new connection counts as one without its first bytes."""
        if self.conn.their_state is h11.SEND_BODY:
            return not self.flow.read_paused
        # Between two requests uvicorn's own timer applies.
        return self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None

    def _is_stuck(self, left: int) -> bool:
        """Return whether the client has stopped reading: the write buffer is full, or the answer's end is
        unread."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return self.flow.write_paused or (not answering and left > 0)


def _enable_keep_alive(connected: socket.socket | None, seconds: float) -> None:
    """Let the system close a connection whose peer disappeared without closing it (TCP keep-alive)."""
    if connected is None or connected.family == socket.AF_UNIX:
        return
    with contextlib.suppress(OSError):
        # A connection that the client has closed may not accept options any more.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", round(1000 * seconds)),
    ):
        # Some systems lack some of these options.
        with contextlib.suppress(AttributeError, OSError):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    refused = ApiError(
        503,
        "there are too many connections; try again later, and close those that are not needed",
        "too_many_connections",
        headers={"retry-after": "1", "connection": "close"},
    )
    await Intake(receive).finish()
    await openai_error(refused)(scope, receive, send)
