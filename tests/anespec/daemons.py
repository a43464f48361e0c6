"""A daemon in a process of its own, as `anespec serve` starts one."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from commands import CommandResult, command_of, run
from patience import PATIENCE


@dataclass(frozen=True)
class Started:
    """A daemon that serves at `url`; `log` is its standard error."""

    process: subprocess.Popen[str]
    url: str
    ready: str
    log: Path
    environment: Mapping[str, str]

    def get(self, path: str, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=PATIENCE)

    def models(self, key: str | None = None) -> dict[str, bool]:
        """The models by name, and whether they are loaded."""
        return {card["id"]: card["loaded"] for card in self.get("/v1/models", key).json()["data"]}

    def command(self, *arguments: object) -> CommandResult:
        """Run `anespec` where the daemon's records are."""
        return run(*arguments, environment=self.environment)


@contextlib.contextmanager
def started(folder: Path, *arguments: object, before: str = "", **variables: str) -> Iterator[Started]:
    """Serve while the block lasts; `folder` gets the state folder and the log.

    `before` is Python that the process runs before the command.
    """
    environment = dict(os.environ) | {"XDG_STATE_HOME": str(folder / "state")} | variables
    log = folder / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command_of("serve", "--port", 0, "--threads", 1, *arguments, before=before),
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready.startswith("Serving"), log.read_text()
        url = next((word for word in ready.split() if word.startswith("http")), "").removesuffix("/v1")
        yield Started(process, url, ready, log, environment)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close()
