"""Runs `anespec` in processes that have its libraries imported already, which takes seconds each time.

    python fork_server.py

Each line of standard input is a Command as JSON; its exit code, negative for a signal, is a line of standard
output. A command runs in a process of its own, forked from this one, which uses no library itself.
"""

import atexit
import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from select import select
from typing import NoReturn

from patience import PATIENCE

IMPORTED = (
    "anespec.convert.worker_imports", "anespec.cli.main", "anespec.runtime.engine.completion",
    "anespec.validate.gates",
    "gguf", "jinja2", "numba", "tokenizers", "torch",
)  # fmt: skip
"""OpenVINO is not among them: it starts a thread as it is imported, which a fork would lose."""


@dataclass(frozen=True)
class Command:
    """The arguments of `anespec`, where it runs, and the files that are its standard streams."""

    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    stdin: str
    stdout: str
    stderr: str


class ForkServer:
    """The process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

        atexit.register(self._end)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, command: Command) -> int:
        """The exit code of a command."""
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None and answers is not None
        given.write(json.dumps(asdict(command)).encode() + b"\n")
        given.flush()
        if not select([answers], [], [], PATIENCE)[0]:
            self._process.kill()
            raise TimeoutError(f"{' '.join(command.arguments)} takes longer than {PATIENCE:.0f} s")
        return int(answers.readline())


@cache
def fork_server() -> ForkServer:
    """The one of this process; it ends with it."""
    return ForkServer()


def _become(command: Command) -> NoReturn:
    """Be the command, as if Python had just been started with it."""
    from anespec.cli.main import main

    os.environ.clear()
    os.environ.update(command.environment)
    os.chdir(command.folder)
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    os.dup2(os.open(command.stdin, os.O_RDONLY), 0)
    os.dup2(os.open(command.stdout, writing, 0o600), 1)
    os.dup2(os.open(command.stderr, writing, 0o600), 2)
    sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.argv = ["-c", *command.arguments]
    try:
        main()
    finally:
        os._exit(1)


def serve() -> None:
    """Answer one command after the other until standard input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    with Path("/dev/stdin").open("rb", buffering=0) as commands:
        while line := commands.readline():
            command = Command(**json.loads(line))
            child = os.fork()
            if not child:
                _become(command)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(1, f"{code}\n".encode())


if __name__ == "__main__":
    serve()
