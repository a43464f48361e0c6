"""A server under test: started as a process of its own, asked until it answers, ended at the end."""

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
"""A daemon may convert and gate first."""


@dataclass(frozen=True)
class Server:
    """One that answers at `url`."""

    name: str
    url: str
    process: int


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(
    name: str, command: Sequence[str], port: int, ready: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """The server that `command` runs, once a GET of `ready` gives 200; RuntimeError where it ends."""
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
    """Wait until a GET of `url` gives 200; RuntimeError where the process ends before, or takes too long."""
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
    """The command that serves `model`, once its gates are asked, with this Python's anespec."""
    command = [sys.executable, "-m", "anespec", "serve", str(model), "--port", str(port)]
    return [*command, "--gates", "now", *options]
