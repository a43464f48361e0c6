"""The worker's commands that do one thing and end: a process each, which may die or hang."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from anespec.manifests.graph_choices import ReshapeHint
from anespec.runtime.backends.coreml.probing import LONGEST_CONTACT
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.system.child_python import NEUTRAL_FOLDER, child_environment
from anespec.system.coreml_errors import ended_by, no_answer
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import last_line

WRONG_USAGE = 64


class CommandFailedError(RuntimeError):
    """Core ML refused, ended the process or did not end: in its own words, or those of coreml_errors."""


def compile_package(
    program: WorkerProgram, package: Path, folder: Path, seconds: float = LONGEST_CONTACT
) -> Path:
    """Compile a package into a folder; returns the .mlmodelc. Raises like `_run`."""
    said = _run(program, ("compile", str(package.absolute()), str(folder.absolute())), seconds)
    # What is moved lies in this folder, whatever is said.
    if not (name := Path(said.strip()).name):
        raise CommandFailedError("the worker does not say what it compiled")
    return folder / name


def plan_json(
    program: WorkerProgram,
    compiled: Path,
    function: str | None,
    hint: ReshapeHint,
    seconds: float = LONGEST_CONTACT,
) -> str:
    """Core ML's plan of a function of a compiled shard, as the worker prints it; None is the only function.

    It is asked with the hint that the shard is loaded with. Raises like `_run`.
    """
    named = () if function is None else ("--function", function)
    return _run(program, ("plan", str(compiled.absolute()), *named, "--reshape-hint", hint), seconds)


def _run(program: WorkerProgram, words: tuple[str, ...], seconds: float) -> str:
    """Return the output of a command.

    Raises:
        CommandFailedError: Core ML refuses, ends it, or takes more seconds than that.
        StorageError: the worker cannot be started.
        AnespecError: it is no command of this executable.
    """
    try:
        done = subprocess.run(
            [*program.command, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=NEUTRAL_FOLDER,
            env=child_environment(),
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailedError(no_answer(seconds)) from None
    except OSError as error:
        raise program.not_started(error) from error
    if done.returncode == WRONG_USAGE:
        raise AnespecError(
            f"the worker knows no command {words[0]}; build it again with `anespec worker build --again`"
        )
    if done.returncode:
        raise CommandFailedError(_reason(done))
    return done.stdout


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the error of a worker that failed: an error as in its replies, or its last line and exit
    status."""
    try:
        error = json.loads(done.stdout)["error"]
        code = "" if error.get("code") is None else f" ({error.get('domain') or 'code'} {error['code']})"
        return f"{error['text']}{code}"
    except (ValueError, KeyError, TypeError, AttributeError):
        status = done.returncode
        end = ended_by(-status) if status < 0 else f"the worker ended with {status}"
        return f"{last_line(done.stderr)}\n{end}".strip()


@dataclass(frozen=True)
class WorkerCompiler:
    """A Compiler (see coreml.compiled) by `anespec-worker compile`, each package within so many seconds.

    `system` is what Core ML is a part of.
    """

    program: WorkerProgram
    system: str
    seconds: float = LONGEST_CONTACT

    def compile(self, package: Path, destination: Path) -> Path:
        """See Compiler.

        Raises:
            StorageError: the worker cannot be started, or what it made not be put there.
            CommandFailedError: Core ML refuses, in its own words.
        """
        try:
            with TemporaryDirectory(dir=destination.parent, prefix=f"{destination.stem}.") as folder:
                return self._compiled(package, Path(folder)).rename(destination)
        except OSError as error:
            raise StorageError(
                f"{package}: cannot be compiled to {destination} ({error.strerror})"
            ) from error

    def _compiled(self, package: Path, folder: Path) -> Path:
        return compile_package(self.program, package, folder, self.seconds)

    def version(self) -> str:
        """The system's build, since it is Core ML that compiles."""
        return f"worker, {self.system}"
