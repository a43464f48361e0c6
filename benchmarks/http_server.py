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
        began = time.monotonic()
        while not _answers(url + ready):
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode} before it answered")
            if time.monotonic() - began > SECONDS_TO_START:
                raise RuntimeError(f"{name} did not answer within {SECONDS_TO_START:.0f} s")
            time.sleep(0.2)
        yield Server(name, url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5).status_code == 200
    return False


def anespec_command(model: Path, port: int, *options: str) -> list[str]:
    """The command that serves `model` with this Python's anespec."""
    return [sys.executable, "-m", "anespec", "serve", str(model), "--port", str(port), *options]
