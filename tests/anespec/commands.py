"""Runs verbs as a person would: in a process of their own, seeing exit code and both streams.

The process is forked from one that has the libraries imported. Where a test is of the process itself, such as
of a signal, of a stream that is closed or of what is imported, it starts `command_of` anew.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fork_server import Command, fork_server
from once import Once


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output; fails where there is anything else."""
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        value = json.loads(lines[0])
        assert isinstance(value, dict)
        return value

    def is_one_sentence(self) -> bool:
        """Whether standard error is an error of one line and no traceback."""
        lines = self.err.strip().splitlines()
        return len(lines) == 1 and lines[0].startswith("error: ") and "Traceback" not in self.err

    def ends_in_one_sentence(self) -> bool:
        """The same of the last line, after lines of progress."""
        lines = self.err.strip().splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        return errors == lines[-1:] and "Traceback" not in self.err


def command_of(*arguments: object, before: str = "") -> list[str]:
    """What runs `anespec` with the arguments; `before` is Python that the process runs before."""
    program = f"{before}\nfrom anespec.cli.main import main; main()"
    return [sys.executable, "-c", program, *map(str, arguments)]


def run(
    *arguments: object, cwd: Path | None = None, stdin: str = "", environment: Mapping[str, str] | None = None
) -> CommandResult:
    """Run `anespec` with the arguments; the environment is that of the tests unless it is given."""
    with TemporaryDirectory() as folder:
        given, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        given.write_text(stdin)
        code = fork_server().run(
            Command(
                arguments=tuple(map(str, arguments)),
                folder=str(cwd or Path.cwd()),
                environment=dict(os.environ if environment is None else environment),
                stdin=str(given),
                stdout=str(out),
                stderr=str(err),
            )
        )
        return CommandResult(code, out.read_text(), err.read_text())


def convert_once(once: Once, gguf: Path, output: Path, *options: object) -> Path:
    """`output`, a copy of the one artifact that the command makes with these options."""

    def make(path: Path) -> None:
        outcome = run("convert", gguf, "-o", path, *options)
        assert outcome.code == 0, outcome.err

    return once(output, make, gguf, options)
