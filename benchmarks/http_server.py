"""Run a server under test as a process: start it, wait until it answers, and end it."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

SECONDS_TO_START = 900.0
"""The time limit of a start; a daemon may convert and run the gates first."""


@dataclass(frozen=True)
class Server:
    """A server that answers at `url`."""

    name: str
    url: str
    process: int


def free_port() -> int:
    """Return a port that is not in use at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(
    name: str, command: Sequence[str], port: int, ready: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start the server `command` and yield it once a GET of `ready` returns 200; RuntimeError if it ends."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await_ready(name, process, url + ready, SECONDS_TO_START)
        yield Server(name, url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_ready(name: str, process: "subprocess.Popen[bytes]", url: str, seconds: float) -> None:
    """Wait until a GET of `url` returns 200; RuntimeError if the process ends first, or takes too long."""
    began = time.monotonic()
    while not _answers(url):
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with code {process.returncode} before it answered")
        if time.monotonic() - began > seconds:
            raise RuntimeError(f"{name} did not answer within {seconds:.0f} s")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5).status_code == 200
    return False


def anespec_command(model: Path, port: int, *options: str) -> list[str]:
    """Return the command that serves `model` with this Python's anespec, after its gates have run."""
    command = [sys.executable, "-m", "anespec", "serve", str(model), "--port", str(port)]
    return [*command, "--gates", "now", *options]
