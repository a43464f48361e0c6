"""One worker process: started, spoken to, and surely ended.

It lives as long as its socket: when this process ends, however it does, the worker sees the socket close.
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

# Messages over a socket: a length of four bytes, little-endian, then as many of one JSON object.

LARGEST = 16 << 20
"""The largest message in bytes; a longer one is an error of the sender."""

_LENGTH = struct.Struct("<I")
_AT_ONCE = 1 << 16

Message = Mapping[str, Any]


class FramingError(Exception):
    """The received bytes are not a message; nothing after them can be parsed either."""


class Connection:
    """One end of a socket pair. What came in part is kept, so that a reading may be begun again."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()

    def send(self, message: Message, seconds: float) -> None:
        """Send one message.

        Raises:
            OSError: the other side is gone (or TimeoutError: it does not read). FramingError: it is too long.
        """
        content = json.dumps(message, separators=(",", ":")).encode()
        if len(content) > LARGEST:
            raise FramingError(f"a message of {len(content)} bytes is too long")
        self._socket.settimeout(seconds)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message.

        Raises:
            EOFError: the other end is closed.
            TimeoutError: none came in that time.
            OSError: the connection is broken.
            FramingError: what came is none.
        """
        until = time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._next(_LENGTH.size, until, take=False))
        if not 0 < length <= LARGEST:
            raise FramingError(f"a message of {length} bytes is announced")
        content = self._next(_LENGTH.size + length, until, take=True)[_LENGTH.size :]
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            raise FramingError("a message is no JSON") from None
        if not isinstance(message, dict):
            raise FramingError("a message is no object")
        return message

    def close(self) -> None:
        """Close this end; the other sees it."""
        self._socket.close()

    def _next(self, count: int, until: float, *, take: bool) -> bytes:
        """The next bytes, which stay where they are unless they are to be taken."""
        while len(self._received) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            more = self._socket.recv(_AT_ONCE)
            if not more:
                raise EOFError
            self._received += more
        found = bytes(self._received[:count])
        if take:
            del self._received[:count]
        return found


SECONDS_TO_STOP = 2.0
"""Seconds in which a worker must exit after it was told to; then it is killed."""

LAST_WORDS = 4096
"""Bytes of the end of standard error that a sentence is looked for in."""


@dataclass(frozen=True)
class WorkerProgram:
    """An executable that speaks the protocol.

    `build` is the SHA-256 of its sources in hexadecimal, which the worker must report if it is `compared`;
    otherwise any identity that distinguishes it from others.
    """

    command: tuple[str, ...]
    build: str
    compared: bool = True

    @property
    def expected_build(self) -> bytes:
        """The build in the shared memory's header, 32 bytes."""
        return bytes.fromhex(self.build) if self.compared else NO_BUILD

    def not_started(self, error: OSError) -> StorageError:
        """Return the error if the system refuses to start it."""
        spoilt = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.EISDIR)
        mend = "; build it with `anespec worker build --again`" if spoilt and self.compared else ""
        return StorageError(f"{self.command[0]}: the worker cannot be started ({error.strerror}){mend}")


class WorkerLostError(Exception):
    """A worker died, hangs, or says what cannot be understood: its states are gone.

    `text` is what coreml_errors knows of it: its last line and how it ended.
    """

    def __init__(self, message: str, text: str | None = None) -> None:
        super().__init__(message)
        self.text = text or message


@dataclass(eq=False)  # not frozen, since Python adds tracebacks to errors
class Refusal(Exception):  # noqa: N818 (an answer like others)
    """A worker's answer that it could not do something; it goes on."""

    kind: str
    domain: str | None
    code: int | None
    text: str
    stage: str | None


class WorkerProcess:
    """A worker and the socket to it. Replies come in the order of requests, and carry their numbers."""

    def __init__(self, program: WorkerProgram, shared: SharedMemory) -> None:
        """Start one; it holds nothing yet.

        Raises:
            StorageError: a process, or what it needs, cannot be made.
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
                    # A session of its own keeps a terminal's ^C from it.
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
        """The process's number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs: it was neither stopped from here nor died."""
        return self.end.alive and self._process.poll() is None

    def send(self, operation: str, fields: Mapping[str, Any], seconds: float) -> None:
        """Ask for something; `reply` must follow before anything else is asked.

        Raises:
            WorkerLostError: it is not there any more.
        """
        self._asked += 1
        try:
            self._connection.send({"id": self._asked, "op": operation, **fields}, seconds)
        except TimeoutError:
            what = f"does not listen to {operation} for {seconds:g} s"
            raise self._lost(what, no_answer(seconds)) from None
        except OSError:
            raise self._lost(None) from None
        except FramingError as error:
            raise AnespecError(f"the worker cannot be asked: {error}") from None
        self.busy = True

    def reply(self, seconds: float) -> dict[str, Any]:
        """Return the answer to the last request; late answers to abandoned requests are skipped.

        Raises:
            WorkerLostError: it died, gave no answer in that time, or one that is none.
            Refusal: it could not do it.
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
            raise self._lost(f"gave an answer that cannot be read ({error})") from None
        self.busy = False
        if answer.get("ok") is True:
            return answer
        raise _refusal(answer)

    def ask(self, operation: str, fields: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its answer; raises as both do."""
        self.send(operation, fields, seconds)
        return self.reply(seconds)

    def stop(self) -> None:
        """Have it end by itself where it has nothing to do, and end it in any case."""
        if self.alive and not self.busy:
            with contextlib.suppress(WorkerLostError, Refusal):
                self.ask("stop", {}, SECONDS_TO_STOP)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(SECONDS_TO_STOP)
        self.end()

    def _lost(self, what: str | None, text: str | None = None) -> WorkerLostError:
        """End it, and say how it ended by itself where nothing else is known of it."""
        if what is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_STOP)
            code, words = self._process.poll(), _last_words(self._words)
            what = _ending(code, words)
            if code is not None and code < 0:
                text = f"{words}\n{ended_by(-code)}".strip()
        self.end()
        return WorkerLostError(f"the worker {what}", text)


def _end(process: "subprocess.Popen[bytes]", connection: Connection, words: BinaryIO) -> None:
    """Kill a process and leave nothing of it behind."""
    process.kill()
    process.wait()
    connection.close()
    words.close()


def _ending(code: int | None, words: str) -> str:
    said = f": {words}" if words else ""
    if code is None:
        return f"closed its connection{said}"
    if code >= 0:
        return f"ended with {code}{said}"
    if -code == signal.SIGKILL:
        return f"was killed{said}"
    return f"died of {signal_name(-code)}{said}"


def _last_words(words: BinaryIO) -> str:
    """The last line that a worker wrote to standard error, for a sentence; a colon never ends it."""
    if words.closed:
        return ""
    size = os.fstat(words.fileno()).st_size
    content = os.pread(words.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode("utf-8", "replace")
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
