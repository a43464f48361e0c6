"""A daemon for fault tests: a process of its own with a log, which can be killed and restarted."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from http_server import await_ready, free_port

SECONDS_TO_START = 120.0
PROGRAM = (sys.executable, "-m", "anespec")


@dataclass(frozen=True)
class Held:
    """The resources of a process: bytes of memory, descriptors, threads."""

    memory: int
    descriptors: int
    threads: int


class Daemon:
    """`anespec serve` of a model on a free port."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *options: str,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it, and wait until it is ready; raises RuntimeError if it ends instead."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                [*program, "serve", str(model), "--port", str(self.port), "--gates", "now", *options],
                stdout=said,
                stderr=said,
                env={**os.environ, **(environment or {})},
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until requests are served."""
        try:
            await_ready("the daemon", self.process, f"{self.url}/health", SECONDS_TO_START)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {self.last_words()}") from None

    @property
    def held(self) -> Held:
        """Return the resources that it holds now."""
        process = psutil.Process(self.process.pid)
        return Held(process.memory_info().rss, process.num_fds(), process.num_threads())

    def gauge(self, name: str) -> float:
        """Return a value of /metrics, summed over labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text("utf-8", "replace")[-600:]

    def complaints(self) -> list[str]:
        """Return the lines of its log that no client should be able to cause."""
        text = self.log.read_text("utf-8", "replace")
        return [line[:300] for line in text.splitlines() if "Traceback" in line or '"level": "error"' in line]

    def kill(self) -> None:
        """Kill it, as the system does when memory runs out."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """End it with SIGTERM and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


@contextlib.contextmanager
def serving(model: Path, log: Path, *options: str, **others: object) -> Iterator[Daemon]:
    """Run a daemon while the block lasts; raises RuntimeError if it ends with an error."""
    daemon = Daemon(model, log, *options, **others)  # type: ignore[arg-type]
    try:
        yield daemon
    except BaseException:
        daemon.end()
        raise
    if (code := daemon.end()) != 0:
        raise RuntimeError(f"the daemon ended with code {code}: {daemon.last_words()}")
