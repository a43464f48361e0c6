"""Connections with timeouts: a client has a limited time to send a request and to read an answer.

uvicorn waits without limit for a request's first bytes, for its body and for a client that reads nothing.
Here each connection checks itself periodically, and is closed if the client was too slow.
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
from anespec.runtime.server.http.guards import GONE, KEY_NEEDED, TAKE, Intake

LONGEST_HEAD = 32 << 10
"""Bytes of a request's line and headers."""

LEAST_LOOK = 0.05
"""Seconds."""

SILENT_SECONDS = 2.0
"""For the first request on a connection of an address that has too many without a key."""

LEAST_TAKEN = 48 << 10
"""Bytes of an answer that a client takes in its time: those between which writing pauses and goes on."""

_log = logging.getLogger("anespec.serve.connections")
_log.setLevel(logging.ERROR)  # uvicorn warns of every request that is none, so anybody could fill the log


@dataclass(frozen=True)
class Patience:
    """The limits of connections: `most` at a time, seconds to send a request, and seconds to read an answer.

    Of a request that was answered before it was sent completely, `unread` further bytes are accepted.
    `keyless` is the number of connections of one address that may be without a key, None for all: beyond it
    only requests with a key are served, and a silent connection is closed soon. If all connections are taken,
    the oldest one without a key is closed for a new one. `keyed` is the number of connections of one key.
    """

    most: int
    receive_seconds: float
    send_seconds: float
    unread: int
    keyless: int | None = None
    keyed: int = sys.maxsize

    @property
    def look(self) -> float:
        """Seconds between two looks."""
        return max(LEAST_LOOK, min(1.0, self.receive_seconds / 4, self.send_seconds / 4))


class ServerConfig(uvicorn.Config):
    """The application that a server runs, and the limits of its connections."""

    def __init__(self, app: Any, patience: Patience, **others: Any) -> None:
        super().__init__(app, http=Connection, h11_max_incomplete_event_size=LONGEST_HEAD, **others)
        self.patience = patience
        self.keyless: Counter[str] = Counter()
        """By address: its connections on which no key has come yet."""
        self.keyed: Counter[str] = Counter()
        """By tenant of a key: the connections on which it came last."""
        self.unkeyed: dict[Connection, None] = {}
        """Those on which no key has come yet, the oldest first, without the unwanted ones."""
        self.unwanted: dict[Connection, None] = {}
        """Those of which an address without a key has too many, the oldest first."""


class Connection(H11Protocol):
    """One connection; see uvicorn's."""

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
        self._owner: str | None = None
        self._key_needed = False
        self._gone = asyncio.Event()
        take = None if self._patience.keyless is None else self._take
        self.app_state = {**self.app_state, GONE: self._gone, KEY_NEEDED: False, TAKE: take}
        self._looking: asyncio.TimerHandle | None = None
        self._slow_since: float | None = None
        self._stuck_since: float | None = None
        self._left = 0
        self._unread = 0
        self.logger = _log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; where there are too many already, every request of this one is refused."""
        super().connection_made(transport)
        beyond = len(self.connections) - self._patience.most
        if beyond > self._patience.most:
            transport.abort()
            return
        if beyond > 0 and not self._make_room():
            self.app = _refuse
        self._count_keyless(self.client[0] if self.client else None)
        _notice_death(transport.get_extra_info("socket"), self._patience.send_seconds)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._looking is not None:
            self._looking.cancel()
        self._gone.set()
        self._leave_holder()
        super().connection_lost(exc)
        # uvicorn leaves it running after an error.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            self._unread += len(data)
            if self._unread > self._patience.unread:
                self.transport.abort()
                return
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Report that the bytes are not a request; called while the parser's error is handled."""
        error = sys.exc_info()[1]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # An answer is under way; nothing else can be said in its midst.
            self.transport.abort()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # The handler of the request that ends here has no client left to answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        answer = ApiError(status, "this is no HTTP request that can be read", "malformed_request").answer()
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
        """Begin with the next request; its time is its own."""
        self._slow_since = None
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Go on writing: the client has taken most of what there was."""
        self._stuck_since = None
        super().resume_writing()

    def _look(self) -> None:
        """End the connection where the client took too long, else look again later."""
        now, left = self.loop.time(), self.transport.get_write_buffer_size()
        self._slow_since = (self._slow_since or now) if self._is_receiving() else None
        if not self._is_stuck(left) or left <= self._left - LEAST_TAKEN:
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
        """Count the connection among those of its address without a key; a Unix socket has none."""
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
        """Count the connection as one of a key's tenant; return False, and change nothing, if it has too
        many."""
        if tenant != self._owner:
            if self._holders.keyed[tenant] >= self._patience.keyed:
                return False
            self._leave_holder()
            self._owner = tenant
            self._holders.keyed[tenant] += 1
        return True

    def _leave_holder(self) -> None:
        """Count it no longer for the address or the key that has had it."""
        for counts, holder in ((self._holders.keyless, self._keyless_at), (self._holders.keyed, self._owner)):
            if holder is not None:
                counts[holder] -= 1
                if not counts[holder]:
                    del counts[holder]
        self._keyless_at = self._owner = None
        self._key_needed = self.app_state[KEY_NEEDED] = False
        self._holders.unwanted.pop(self, None)
        self._holders.unkeyed.pop(self, None)

    def _make_room(self) -> bool:
        """End the oldest connection without a key, an unwanted one if there is any; return whether there was
        one."""
        oldest = next(chain(self._holders.unwanted, self._holders.unkeyed), None)
        if oldest is None:
            return False
        oldest._leave_holder()
        oldest.transport.abort()
        return True

    def _is_receiving(self) -> bool:
        """Whether a part of a request is still to come, including its first bytes on a new connection."""
        if self.conn.their_state is h11.SEND_BODY:
            return not self.flow.read_paused
        # Between two requests uvicorn's own timer runs.
        return self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None

    def _is_stuck(self, left: int) -> bool:
        """Whether the client does not read its answer: the write buffer is full, or the end of the answer is
        unread."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return self.flow.write_paused or (not answering and left > 0)


def _notice_death(connected: socket.socket | None, seconds: float) -> None:
    """Have the system end a connection whose other end is gone without a word."""
    if connected is None or connected.family == socket.AF_UNIX:
        return
    with contextlib.suppress(OSError):
        # One that the client has left by now may take no options any more.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", round(1000 * seconds)),
    ):
        # Not every system has all of them.
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
