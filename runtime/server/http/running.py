"""Run the HTTP server on a socket, until a signal ends it and its last answers are sent."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from anespec.runtime.server.daemon import Daemon
from anespec.runtime.server.http.connections import Patience, ServerConfig
from anespec.runtime.server.http.listening import BACKLOG
from anespec.runtime.server.options import ServeOptions
from anespec.system.formatting import counted

# Log failures of accept() for want of descriptors: at most one line a second, without a traceback. asyncio
# retries after a second, and reports each failed accept() as an error.

SECONDS_BETWEEN_LINES = 1.0

ACCEPT_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept() after which asyncio waits for a second."""

_log = logging.getLogger("anespec.serve")


class AcceptFailures:
    """An event loop's exception handler for failures of accept(); all others go to asyncio's handler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._logged: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a failure, unless one was logged within the last second."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in ACCEPT_ERRORS and "socket" in context):
            loop.default_exception_handler(context)
            return
        now = self._clock()
        if self._logged is None or now - self._logged >= SECONDS_BETWEEN_LINES:
            self._logged = now
            _log.warning(
                "no further connection can be accepted now (%s); lower --connections, or raise `ulimit -n`",
                error.strerror,
            )


SECONDS_TO_CLOSE = 5
"""Seconds for clients to read the ends of their answers."""

KEEP_ALIVE_SECONDS = 60
"""Seconds that an idle connection is kept open."""

KEYLESS_CONNECTIONS = 64
"""The most connections without a key from one address, if keys are needed. Behind a proxy all clients have
its address; those with a key do not count."""

KEY_DIVISOR = 4
"""The divisor of all connections that limits a key: one key has at most a quarter, so that it cannot lock out
others."""

OTHER_FILES = 1024
"""File descriptors reserved for shards, threads, worker processes and refused connections."""

SHARE_OF_BACKLOG = 8
"""The backlog is an eighth of the descriptors that are not for connections: asyncio accepts a backlog in
one turn of its loop, and connections that are refused are closed three turns later."""


_ENDING = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """A server that leaves the handling of signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def close_idle(self) -> None:
        """Close the idle connections now, and the others after their answers."""
        for connection in list(self.server_state.connections):
            if not connection.transport.is_closing():
                connection.shutdown()


def server_of(app: ASGIApp, options: ServeOptions) -> Server:
    """Return the server of an application, with no more connections than the system allows open files."""
    files = _allow_descriptors(2 * options.connections + OTHER_FILES)
    # Refused connections also need a descriptor until they are closed.
    most = min(options.connections, max(files - OTHER_FILES, files // 2) // 2)
    if most < options.connections:
        _log.warning(
            "only %d files may be open, so only %d connections are accepted at a time; raise `ulimit -n`",
            files,
            most,
        )
    patience = Patience(
        most,
        options.receive_seconds,
        options.send_seconds,
        unread=options.body_bytes,
        keyless=None if options.api_key_file is None else KEYLESS_CONNECTIONS,
        keyed=max(1, most // KEY_DIVISOR),
    )
    return Server(
        ServerConfig(
            app,
            patience,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            backlog=max(1, min(BACKLOG, (files - 2 * most) // SHARE_OF_BACKLOG)),
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SECONDS_TO_CLOSE,
        )
    )


async def serve_until_ended(
    daemon: Daemon, app: ASGIApp, listening: Sequence[socket.socket], begin: Callable[[], Awaitable[None]]
) -> None:
    """Serve until SIGTERM or SIGINT, then complete the running answers; a second signal cancels them.

    `begin` loads the first models and then calls `ready` of the daemon's lifecycle. Until then requests get
    the answer that the daemon starts. An error of `begin` ends the daemon. SIGHUP reloads the models.
    """
    server = server_of(app, daemon.options)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(AcceptFailures(loop.time))
    asked, again = asyncio.Event(), asyncio.Event()

    def ask(number: signal.Signals) -> None:
        if number is signal.SIGINT and sys.stderr.isatty():
            # The terminal has echoed ^C, so start a new line for the log.
            sys.stderr.write("\n")
        if asked.is_set():
            _log.info("ending now")
            again.set()
            for number in _ENDING:
                # A third signal kills the process.
                loop.remove_signal_handler(number)
        asked.set()

    hung_up = asyncio.Event()

    async def reload() -> None:
        # Any number of signals during a reload cause one more reload.
        while await hung_up.wait():
            hung_up.clear()
            try:
                await daemon.models.reload()
            except Exception:
                _log.exception("the served models could not be read again")

    for number in _ENDING:
        loop.add_signal_handler(number, ask, number)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    reloading = asyncio.ensure_future(reload())
    serving = asyncio.ensure_future(server.serve(sockets=[*listening]))
    beginning = asyncio.ensure_future(begin())
    ending = asyncio.ensure_future(asked.wait())
    hurrying = asyncio.ensure_future(again.wait())
    try:
        await asyncio.wait({serving, beginning, ending}, return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            beginning.result()
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        _log.info("%s", _ending_text(daemon))
        draining = asyncio.ensure_future(daemon.lifecycle.drain(daemon.options.drain_seconds))
        await asyncio.sleep(0)  # from here on new requests are refused
        # Requests that wait for a model have no running answer, and loading may take long.
        beginning.cancel()
        daemon.models.stop_loading()
        server.close_idle()
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
    finally:
        for task in (beginning, ending, reloading):
            task.cancel()
        # Clients with a running answer get an error that the daemon ends.
        await daemon.models.close()
        await daemon.lifecycle.drain(SECONDS_TO_CLOSE)
        server.should_exit, server.force_exit = True, again.is_set()
        await serving
        hurrying.cancel()
        for number in (*_ENDING, signal.SIGHUP):
            loop.remove_signal_handler(number)
        if asked.is_set():
            _log.info("ended")


def _ending_text(daemon: Daemon) -> str:
    """Return the log line for the start of the shutdown."""
    if not (count := daemon.lifecycle.answering):
        return "shutting down"
    return (
        f"shutting down: {counted(count, 'answer')} may take up to {daemon.options.drain_seconds:g} s more; "
        "a second ^C or SIGTERM cancels them"
    )


def _allow_descriptors(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, if possible, and return the limit.

    The default on macOS is 256.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft
