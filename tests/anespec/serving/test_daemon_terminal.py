"""What `anespec serve` says to a person: in a terminal, before it listens, and when it ends."""

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from commands import command_of
from daemons import started
from patience import PATIENCE
from waiting import until

DRAWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def screen_of(written: str) -> list[str]:
    """The lines that a terminal shows in the end: a line that is gone back to is written anew."""
    lines, at = [""], 0
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", written):
        match part:
            case "\n":
                at += 1
                lines += [""] * (at + 1 - len(lines))
            case "\x1b[1A":
                at -= 1
            case "\x1b[2K":
                lines[at] = ""
            case _ if part != "\r" and not DRAWN.fullmatch(part):
                lines[at] += part
    return [line for line in lines if line.strip()]


@pytest.mark.slow
def test_in_a_terminal_nothing_stays_of_progress_and_the_end_is_told(gguf: Path, tmp_path: Path) -> None:
    near, far = pty.openpty()
    places = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = dict(os.environ) | places | {"TERM": "xterm-256color", "COLUMNS": "100"}
    command = command_of("serve", gguf, "--port", 0, "--threads", 1, "--gates", "never")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=far, stdout=far, stderr=far, start_new_session=True
    )
    os.close(far)
    parts: list[bytes] = []

    def read() -> None:
        # Linux says that nobody holds the other end as an error.
        try:
            while part := os.read(near, 65536):
                parts.append(part)
        except OSError:
            pass

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        until(lambda: b"/v1 for clients" in b"".join(parts))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        reading.join(PATIENCE)
        os.close(near)
    lines = screen_of(b"".join(parts).decode())
    kinds = re.compile(r"note: |\d\d:\d\d:\d\d (info|warning): |Serving ")
    assert not [
        line for line in lines if re.search("[\u2800-\u28ff]|warming up|loading |converting ", line)
    ], lines
    assert [line for line in lines if kinds.match(line)][-2:] == [
        line for line in lines if re.search("info: (shutting down|ended)$", line)
    ]
    assert any("has no chat template, so clients' messages are refused" in line for line in lines)
    assert any("--chat-template takes" in line for line in lines)


def test_a_default_that_is_not_there_is_told_before_anything_listens(tmp_path: Path) -> None:
    done = subprocess.run(
        command_of("serve", "typo.gguf", "--port", 0),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 8
    assert done.stderr.count("typo.gguf: is no file, no folder and no model in the cache") == 1
    assert "listening" not in done.stderr and "being loaded" not in done.stderr


@pytest.mark.slow
def test_the_log_says_when_the_gates_are_done_and_drafts_begin(artifact: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.anespec"
    shutil.copytree(artifact, fresh)
    shutil.rmtree(fresh / "gates", ignore_errors=True)
    with started(tmp_path, fresh, "--gates", "later") as daemon:
        until(lambda: "the gates are done" in daemon.log.read_text())
        assert "; drafts begin" in daemon.log.read_text()


@pytest.mark.slow
def test_answers_that_are_waited_for_at_the_end_are_counted(measured: Path, tmp_path: Path) -> None:
    with started(tmp_path, measured, "--drain-seconds", 1) as daemon:
        port = int(daemon.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            # A request whose body does not come.
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
            )
            # The daemon says this once it waits for the body.
            client.settimeout(PATIENCE)
            assert client.recv(100).startswith(b"HTTP/1.1 100 ")
            daemon.process.send_signal(signal.SIGTERM)
            daemon.process.wait(PATIENCE)
        log = daemon.log.read_text()
    assert "shutting down: 1 answer may take up to 1 s more" in log and '"ended"' in log
