"""What is logged where no file is left for another connection."""

import asyncio
import errno
import socket

import pytest

from anespec.runtime.server.http.running import AcceptFailures

BACKLOG = 30


def _fail_to_accept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failures: AcceptFailures
) -> int:
    """Have a client wait at a socket of which no connection can be taken; how often that was tried."""
    tried = 0

    def accept(_: socket.socket) -> None:
        nonlocal tried
        tried += 1
        raise OSError(errno.EMFILE, "Too many open files")

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(failures)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            async with await asyncio.start_server(lambda *_: None, sock=listening, backlog=BACKLOG):
                with socket.create_connection(listening.getsockname()):
                    while not tried:
                        await asyncio.sleep(0.001)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with caplog.at_level("WARNING"):
        asyncio.run(work())
    return tried


def test_it_is_told_once_a_second_in_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 7.0
    failures = AcceptFailures(lambda: now)
    for second, lines in ((0.0, 1), (0.9, 1), (1.0, 2), (1.5, 2), (2.5, 3)):
        now = 7.0 + second
        assert _fail_to_accept(monkeypatch, caplog, failures) >= BACKLOG
        assert len(caplog.records) == lines
    assert all(record.name == "anespec.serve" and record.exc_info is None for record in caplog.records)
    assert "raise `ulimit -n`" in caplog.text


def test_any_other_failure_is_asyncios_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        failures = AcceptFailures(loop.time)
        failures(loop, {"message": "never awaited", "exception": ValueError("x")})
        failures(loop, {"message": "no file for a shard", "exception": OSError(errno.EMFILE, "x")})

    asyncio.run(work())
    assert [record.name for record in caplog.records] == ["asyncio", "asyncio"]
