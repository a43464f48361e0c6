"""Connections of clients that are slow, gone, too many, or no clients at all; with real sockets."""

import asyncio
import contextlib
import http.client
import json
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import RLIM_INFINITY

import pytest
from patience import PATIENCE
from serving import Running, running, standing_still
from waiting import until

import anespec
from anespec.model import Model
from anespec.runtime.server.http import connections
from anespec.runtime.server.http import running as running_module
from anespec.runtime.server.http.connections import Connection, ServerConfig
from anespec.runtime.server.http.running import server_of
from anespec.runtime.server.options import ServeOptions

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

PROMPT = "Once upon a time"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


SECONDS = 1000.0
"""The time of clients, on a clock that tests put forward: however busy the machine is, it does not pass by
itself."""


@dataclass(frozen=True)
class Watched(Running):
    """A daemon that is known to have got what was sent."""

    taken: dict[int, int]
    """The bytes that have come on a connection, by the client's port."""

    def await_bytes(self, client: socket.socket, count: int) -> None:
        """Wait until so many bytes of a client have come."""
        until(lambda: self.taken.get(client.getsockname()[1]) == count)


@pytest.fixture(scope="module")
def impatient(model: Model) -> Iterator[Watched]:
    """A daemon that gives its clients that time, and takes ten at a time."""
    taken: dict[int, int] = {}

    class Counting(Connection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            taken[transport.get_extra_info("peername")[1]] = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            taken[self.transport.get_extra_info("peername")[1]] += len(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "Connection", Counting)
        patch.setattr(running_module, "KEEP_ALIVE_SECONDS", 100 * SECONDS)
        with running(
            {"chatty": model},
            receive_seconds=SECONDS,
            send_seconds=SECONDS,
            connections=10,
            body_bytes=200_000,
        ) as found:
            yield Watched(**vars(found), taken=taken)


def _connect(running: Running, **options: int) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    found = socket.socket()
    for name, value in options.items():
        found.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    found.settimeout(PATIENCE)
    found.connect((host, int(port)))
    return found


def _request(fields: dict[str, object]) -> bytes:
    body = json.dumps({"prompt": PROMPT, "temperature": 0, "ignore_eos": True, **fields}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _rest(client: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _status(client: socket.socket) -> int:
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


@pytest.mark.fast_only("chunks")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HT",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a"',
    ],
    ids=["nothing", "a line", "headers", "a body", "chunks"],
)
def test_who_sends_too_slowly_is_given_up(impatient: Watched, sent: bytes) -> None:
    with _connect(impatient) as client:
        client.sendall(sent)
        impatient.await_bytes(client, len(sent))
        impatient.let_pass(1.1 * SECONDS)
        assert _rest(client) == b""


def test_drop_by_drop_is_too_slow_as_well(impatient: Watched) -> None:
    with _connect(impatient) as client:
        for number, drop in enumerate(b"GET", 1):
            client.sendall(bytes([drop]))
            impatient.await_bytes(client, number)
            impatient.let_pass(0.4 * SECONDS)
        assert _rest(client) == b""


def test_an_endless_body_is_not_taken_for_ever(impatient: Watched) -> None:
    with _connect(impatient) as client, pytest.raises(OSError):
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        # Much more than the system keeps of what a daemon does not read.
        for _ in range(4000):
            client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def test_a_body_that_is_too_large_is_refused_before_it_has_come(impatient: Watched) -> None:
    with _connect(impatient) as client:
        client.sendall(HEAD + b"Content-Length: 200001\r\n\r\n")
        assert _status(client) == 413


def test_an_idle_connection_may_be_used_again_later(impatient: Watched) -> None:
    with _connect(impatient) as client:
        for _ in range(3):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _status(client) == 200
            impatient.let_pass(1.1 * SECONDS)


def test_requests_may_follow_one_another_unasked(served: Running) -> None:
    with _connect(served) as client:
        client.sendall(
            _request({"max_tokens": 1})
            + b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        found = _rest(client)
    assert found.count(b"HTTP/1.1 200") == 2
    assert found.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 400_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 400_000 + b" HTTP/1.1\r\n\r\n", 431),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_told_so(served: Running, sent: bytes, status: int) -> None:
    with _connect(served) as client:
        client.sendall(sent)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == status
        assert json.loads(answer.read())["error"]["code"] == "malformed_request"


def test_a_body_whose_length_is_said_twice_is_refused_and_nothing_behind_it_is_read(served: Running) -> None:
    with _connect(served) as client:
        client.sendall(
            HEAD
            + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        found = _rest(client)
    assert found.startswith(b"HTTP/1.1 400") and found.count(b"HTTP/1.1 ") == 1


def test_what_comes_after_a_request_that_is_being_answered_cannot_harm(served: Running) -> None:
    with _connect(served) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        _rest(client)
    assert served.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", [b"/nothing", b"/v1/completions"])
def test_a_body_that_is_none_is_answered_once(
    served: Running, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with _connect(served) as client:
        client.sendall(
            b"POST "
            + path
            + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"
        )
        assert _rest(client).count(b"HTTP/1.1 400") == 1
    served.client.get("/livez")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_no_more_connections_are_taken_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most, backlog in (
        (RLIM_INFINITY, 2048, 128),
        (100_000, 2048, 128),
        (1024, 256, 64),
        (128, 32, 8),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, files=files: (files, files))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
        config = server_of(lambda scope, receive, send: None, ServeOptions()).config
        assert isinstance(config, ServerConfig)
        assert (config.patience.most, config.backlog) == (most, backlog)


def test_too_many_connections_are_refused_and_room_comes_back(impatient: Watched) -> None:
    # The client of the fixture may hold one more.
    with contextlib.ExitStack() as held:
        for _ in range(10):
            client = held.enter_context(_connect(impatient))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _status(client) == 200
        late = held.enter_context(_connect(impatient))
        late.sendall(_request({"max_tokens": 1}))
        answer = http.client.HTTPResponse(late)
        answer.begin()
        assert (answer.status, answer.getheader("retry-after")) == (503, "1")
        assert json.loads(answer.read())["error"]["code"] == "too_many_connections"
        assert late.recv(1) == b""

    def answers() -> bool:
        with _connect(impatient) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return _status(client) == 200

    until(answers)


@pytest.fixture
def busy(chatty: Path) -> Iterator[tuple[Model, Running]]:
    """A daemon of a model of its own, whose answers are long."""
    with (
        anespec.load(chatty, queue=64) as model,
        running({"chatty": model}, send_seconds=SECONDS) as found,
    ):
        yield model, found


LONG = {"max_tokens": 480, "speculate": False}


def test_a_client_that_goes_away_frees_what_it_held(busy: tuple[Model, Running]) -> None:
    model, found = busy
    for fields in ({}, {"stream": True}, {"n": 4}, {"n": 4, "stream": True}):
        client = _connect(found)
        client.sendall(_request(LONG | fields))
        until(lambda: model.load.active > 0)
        with standing_still(model):
            passes = model.load.passes
            assert model.load.active > 0
            client.close()
            until(lambda: not found.connections)
        until(lambda: model.load.active == 0)
        assert model.load.passes - passes < 200
        until(lambda: found.models.leases == 0)


@pytest.mark.slow
def test_one_that_waits_in_the_queue_leaves_it(busy: tuple[Model, Running]) -> None:
    model, found = busy
    with model.begin([1, 2], anespec.GenerationOptions(max_tokens=480, choices=4, ignore_eos=True)):
        until(lambda: model.load.active == 4)
        client = _connect(found)
        client.sendall(_request(LONG))
        until(lambda: model.load.waiting == 1)
        client.close()
        until(lambda: model.load.waiting == 0)
        assert model.load.active == 4


@pytest.mark.slow
def test_one_that_reads_nothing_of_its_stream_is_given_up(busy: tuple[Model, Running]) -> None:
    model, found = busy
    client = _connect(found, SO_RCVBUF=4096)
    try:
        client.sendall(_request(LONG | {"stream": True, "logprobs": 20, "n": 16}))
        until(lambda: any(each.flow.write_paused for each in found.connections))
        with standing_still(model):
            passes = model.load.passes
            assert model.load.active > 0
            # At the first look it is stuck, and at the second one it has been for too long.
            found.let_pass(2)
            until(lambda: any(each._stuck_since for each in found.connections))
            found.let_pass(1.1 * SECONDS)
            until(lambda: not found.connections)
        until(lambda: found.models.leases == 0)
        until(lambda: (model.load.active, model.load.waiting) == (0, 0))
        assert model.load.passes - passes < 200
    finally:
        client.close()
