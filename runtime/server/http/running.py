"""The HTTP server on a socket, from its first request to its last answer."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from anespec.runtime.server.daemon import Daemon
from anespec.runtime.server.http.connections import Patience, ServerConfig
from anespec.runtime.server.http.listening import BACKLOG
from anespec.runtime.server.options import ServeOptions
from anespec.system.formatting import counted

# Logging of connections that the system has no free descriptor for: one line a second, without traceback.
#
# asyncio tries again a second later, and reports each accept() that failed as an error of its own.

SECONDS_BETWEEN_LINES = 1.0

OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept() after which asyncio waits for a second."""

_log = logging.getLogger("anespec.serve")


class AcceptFailures:
    """An exception handler for an event loop; what is not a failure of accept() goes to asyncio's handler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._logged: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a failure, unless one was logged within the last second."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_FILES and "socket" in context):
            loop.default_exception_handler(context)
            return
        now = self._clock()
        if self._logged is None or now - self._logged >= SECONDS_BETWEEN_LINES:
            self._logged = now
            _log.warning(
                "no further connection can be taken now (%s); lower --connections, or raise `ulimit -n`",
                error.strerror,
            )


SECONDS_TO_CLOSE = 5
"""Seconds in which clients can read the ends of their answers."""

KEEP_ALIVE_SECONDS = 60
"""How long a connection stays between two requests."""

KEYLESS_CONNECTIONS = 64
"""Of one address at a time without a key, where keys are needed. Behind a proxy all clients have its address,
but those that have a key are not bound by this."""

PART_OF_A_KEY = 4
"""Of all connections a key has a quarter at most, so that others are never refused for its sake alone."""

OTHER_FILES = 1024
"""Descriptors that are not for connections: for shards, threads, worker processes and refused connections."""

SHARE_OF_BACKLOG = 8
"""The backlog is an eighth of the descriptors that are not for connections: asyncio accepts a backlog in
one turn of its loop, and connections that are refused are closed three turns later."""


_ENDING = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """A server that does not handle signals; its caller does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def close_idle(self) -> None:
        """Close the connections on which nothing is asked, and the others once they are answered."""
        for connection in list(self.server_state.connections):
            if not connection.transport.is_closing():
                connection.shutdown()


def server_of(app: ASGIApp, options: ServeOptions) -> Server:
    """The server of an application; it takes no more connections than the system lets it have files."""
    files = _allow_descriptors(2 * options.connections + OTHER_FILES)
    # Some are refused, and need one until they have heard so.
    most = min(options.connections, max(files - OTHER_FILES, files // 2) // 2)
    if most < options.connections:
        _log.warning(
            "only %d files may be open, so %d connections are taken at a time; raise `ulimit -n`", files, most
        )
    patience = Patience(
        most,
        options.receive_seconds,
        options.send_seconds,
        unread=options.body_bytes,
        keyless=None if options.api_key_file is None else KEYLESS_CONNECTIONS,
        keyed=max(1, most // PART_OF_A_KEY),
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
    daemon: Daemon, app: ASGIApp, listening: socket.socket, begin: Callable[[], Awaitable[None]]
) -> None:
    """Serve until SIGTERM or SIGINT, then let the answers that have begun end; a second one waits for none.

    `begin` loads what is needed first, and makes the daemon's lifecycle ready; meanwhile it answers that it
    starts. What `begin` raises ends it. SIGHUP reloads the models.
    """
    server = server_of(app, daemon.options)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(AcceptFailures(loop.time))
    asked, again = asyncio.Event(), asyncio.Event()

    def ask(number: signal.Signals) -> None:
        if number is signal.SIGINT and sys.stderr.isatty():
            # The terminal has written ^C where the next line of the log begins.
            sys.stderr.write("\n")
        if asked.is_set():
            _log.info("ending now")
            again.set()
            for number in _ENDING:
                # A third one ends the process as it is.
                loop.remove_signal_handler(number)
        asked.set()

    hung_up = asyncio.Event()

    async def reload() -> None:
        # What comes during one makes for one more, however often it comes.
        while await hung_up.wait():
            hung_up.clear()
            try:
                await daemon.models.reload()
            except Exception:
                _log.exception("what is served could not be read again")

    for number in _ENDING:
        loop.add_signal_handler(number, ask, number)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    reloading = asyncio.ensure_future(reload())
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
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
        # No answer has begun for whoever waits for a model, which may take longer than all others do.
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
    """What is said where no new requests are taken any more."""
    if not (count := daemon.lifecycle.answering):
        return "ending"
    return (
        f"ending: {counted(count, 'answer')} may take up to {daemon.options.drain_seconds:g} s more; "
        "a second ^C or SIGTERM waits for none"
    )


def _allow_descriptors(wanted: int) -> int:
    """Let the process have so many files and connections open, where it may, or as many as it may.

    macOS begins with 256.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft
