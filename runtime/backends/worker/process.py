"""Start a worker process, exchange messages with it, and end it.

A worker exits when its socket closes, so it never outlives this process, however that ends.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO
from weakref import finalize

from anespec.runtime.backends.worker.shared_memory import NO_BUILD, SharedMemory
from anespec.system.child_python import NEUTRAL_FOLDER, child_environment, signal_name
from anespec.system.coreml_errors import ended_by, no_answer
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import LONGEST_REASON, last_line, printable

# A message on the socket: its length in bytes (4 bytes, little-endian), then one JSON object.

MAX_MESSAGE_BYTES = 16 << 20
"""The largest message in bytes; a longer one is an error of its sender."""

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16

Message = Mapping[str, Any]


class FramingError(Exception):
    """The received bytes are not a message, so the bytes after them cannot be parsed either."""


class Connection:
    """One end of a socket pair. A partly received message is kept, so `receive` can be called again."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()

    def send(self, message: Message, seconds: float) -> None:
        """Send one message.

        Raises:
            OSError: the other side is gone; TimeoutError if it does not read.
            FramingError: the message is too long.
        """
        content = json.dumps(message, separators=(",", ":")).encode()
        if len(content) > MAX_MESSAGE_BYTES:
            raise FramingError(f"a message of {len(content)} bytes is too long")
        self._socket.settimeout(seconds)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next message.

        Raises:
            EOFError: the other end is closed.
            TimeoutError: no message arrived within `seconds`.
            OSError: the connection is broken.
            FramingError: the received bytes are not a message.
        """
        until = time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._next(_LENGTH.size, until, take=False))
        if not 0 < length <= MAX_MESSAGE_BYTES:
            raise FramingError(f"a message of {length} bytes is announced")
        content = self._next(_LENGTH.size + length, until, take=True)[_LENGTH.size :]
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            raise FramingError("a message is not JSON") from None
        if not isinstance(message, dict):
            raise FramingError("a message is not a JSON object")
        return message

    def close(self) -> None:
        """Close this end; the other end then receives EOF."""
        self._socket.close()

    def _next(self, count: int, until: float, *, take: bool) -> bytes:
        """Return the next `count` bytes; without `take` they stay in the buffer."""
        while len(self._received) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            more = self._socket.recv(_READ_BYTES)
            if not more:
                raise EOFError
            self._received += more
        found = bytes(self._received[:count])
        if take:
            del self._received[:count]
        return found


STOP_TIMEOUT = 2.0
"""Seconds that a worker has to exit after the request to stop; then it is killed."""

STDERR_TAIL_BYTES = 4096
"""Bytes at the end of standard error that are searched for the cause of an exit."""


@dataclass(frozen=True)
class WorkerProgram:
    """The command that starts a worker, and its build.

    If the build is `compared`, `build` is the SHA-256 of the sources in hexadecimal, and the worker must have
    the same one. Otherwise it is any text that distinguishes the executable from others.
    """

    command: tuple[str, ...]
    build: str
    compared: bool = True

    @property
    def expected_build(self) -> bytes:
        """The build to write into the shared memory's header, 32 bytes."""
        return bytes.fromhex(self.build) if self.compared else NO_BUILD

    def not_started(self, error: OSError) -> StorageError:
        """Return the error to raise if the system refuses to start the worker."""
        spoilt = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.EISDIR)
        fix = "; build it with `anespec worker build --again`" if spoilt and self.compared else ""
        return StorageError(f"{self.command[0]}: the worker cannot be started ({error.strerror}){fix}")


class WorkerLostError(Exception):
    """A worker died, hangs, or gave an invalid answer; its states are lost.

    `text` describes the cause for coreml_errors: the worker's last line and how it ended.
    """

    def __init__(self, message: str, text: str | None = None) -> None:
        super().__init__(message)
        self.text = text or message


@dataclass(eq=False)  # not frozen, since Python adds tracebacks to errors
class Refusal(Exception):  # noqa: N818 (an answer like others)
    """A worker's answer that a request failed. The worker itself continues."""

    kind: str
    domain: str | None
    code: int | None
    text: str
    stage: str | None


class WorkerProcess:
    """A worker and the socket to it. Replies arrive in the order of requests, with their numbers."""

    def __init__(self, program: WorkerProgram, shared: SharedMemory) -> None:
        """Start a worker that holds no stages yet.

        Raises:
            StorageError: the process, its socket or its file for standard error cannot be created.
        """
        self.busy = False
        self._asked = 0
        with contextlib.ExitStack() as undo:
            try:
                own, its = socket.socketpair()
                undo.callback(own.close)
                with its:
                    self._words: BinaryIO = tempfile.TemporaryFile(prefix="anespec-worker-")  # noqa: SIM115
                    undo.callback(self._words.close)
                    command = [*program.command, "serve", "--socket", str(its.fileno())]
                    # In its own session, so that a terminal's ^C does not reach it.
                    self._process = subprocess.Popen(
                        [*command, "--arena", str(shared.descriptor)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=self._words,
                        pass_fds=(its.fileno(), shared.descriptor),
                        cwd=NEUTRAL_FOLDER,
                        env=child_environment(),
                        start_new_session=True,
                    )
            except OSError as error:
                raise program.not_started(error) from error
            undo.pop_all()
        self._connection = Connection(own)
        self.end = finalize(self, _end, self._process, self._connection, self._words)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.end.alive and self._process.poll() is None

    def send(self, operation: str, fields: Mapping[str, Any], seconds: float) -> None:
        """Send a request; the caller must call `reply` before the next request.

        Raises:
            WorkerLostError: the worker ended, or did not read the request within `seconds`.
        """
        self._asked += 1
        try:
            self._connection.send({"id": self._asked, "op": operation, **fields}, seconds)
        except TimeoutError:
            what = f"did not read the request {operation} for {seconds:g} s"
            raise self._lost(what, no_answer(seconds)) from None
        except OSError:
            raise self._lost(None) from None
        except FramingError as error:
            raise AnespecError(f"a request cannot be sent to the worker: {error}") from None
        self.busy = True

    def reply(self, seconds: float) -> dict[str, Any]:
        """Return the answer to the last request; late answers to abandoned requests are skipped.

        Raises:
            WorkerLostError: the worker died, gave no answer within `seconds`, or an invalid one.
            Refusal: the request failed.
        """
        try:
            while (answer := self._connection.receive(seconds)).get("id") != self._asked:
                if answer.get("id") is None:
                    raise self._lost(f"gave up: {_refusal(answer).text}")
        except TimeoutError:
            what = f"gave no answer for {seconds:g} s and was ended"
            raise self._lost(what, no_answer(seconds)) from None
        except (EOFError, OSError):
            raise self._lost(None) from None
        except FramingError as error:
            raise self._lost(f"gave an answer that cannot be parsed ({error})") from None
        self.busy = False
        if answer.get("ok") is True:
            return answer
        raise _refusal(answer)

    def ask(self, operation: str, fields: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return its answer; raises like `send` and `reply`."""
        self.send(operation, fields, seconds)
        return self.reply(seconds)

    def stop(self) -> None:
        """Ask an idle worker to exit; kill it if it does not, or if it is busy."""
        if self.alive and not self.busy:
            with contextlib.suppress(WorkerLostError, Refusal):
                self.ask("stop", {}, STOP_TIMEOUT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_TIMEOUT)
        self.end()

    def _lost(self, what: str | None, text: str | None = None) -> WorkerLostError:
        """Kill the worker; return the error, which says how the worker ended if `what` is None."""
        if what is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
            code, words = self._process.poll(), _last_stderr_line(self._words)
            what = _ending(code, words)
            if code is not None and code < 0:
                text = f"{words}\n{ended_by(-code)}".strip()
        self.end()
        return WorkerLostError(f"the worker {what}", text)


def _end(process: "subprocess.Popen[bytes]", connection: Connection, words: BinaryIO) -> None:
    """Kill a process, and close its socket and its standard error."""
    process.kill()
    process.wait()
    connection.close()
    words.close()


def _ending(code: int | None, words: str) -> str:
    detail = f": {words}" if words else ""
    if code is None:
        return f"closed its connection{detail}"
    if code >= 0:
        return f"ended with {code}{detail}"
    if -code == signal.SIGKILL:
        return f"was killed{detail}"
    return f"died of {signal_name(-code)}{detail}"


def _last_stderr_line(words: BinaryIO) -> str:
    """Return the last line of a worker's standard error, for use within an error message."""
    if words.closed:
        return ""
    size = os.fstat(words.fileno()).st_size
    content = os.pread(words.fileno(), STDERR_TAIL_BYTES, max(0, size - STDERR_TAIL_BYTES)).decode(
        "utf-8", "replace"
    )
    return last_line(content)


def _refusal(answer: Mapping[str, Any]) -> Refusal:
    error = answer.get("error")
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code")
    stage, domain = fields.get("stage"), fields.get("domain")
    return Refusal(
        kind=str(fields.get("kind", "internal")),
        domain=None if domain is None else str(domain),
        code=code if type(code) is int else None,
        text=printable(str(fields.get("text", "no reason is given")), LONGEST_REASON),
        stage=None if stage is None else str(stage),
    )
