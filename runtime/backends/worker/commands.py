"""Run the worker's one-shot commands (compile, plan), each in a process that may crash or hang."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from anespec.manifests.graph_choices import ReshapeHint
from anespec.runtime.backends.coreml.probing import PROBE_TIMEOUT
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.system.child_python import NEUTRAL_FOLDER, child_environment
from anespec.system.coreml_errors import ended_by, no_answer
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import last_line

WRONG_USAGE = 64


class CommandFailedError(RuntimeError):
    """A command failed: Core ML refused, crashed or timed out. The text is Core ML's or coreml_errors'."""


def compile_package(
    program: WorkerProgram, package: Path, folder: Path, seconds: float = PROBE_TIMEOUT
) -> Path:
    """Compile a package into a folder; return the path of the .mlmodelc. Raises like `_run`."""
    output = _run(program, ("compile", str(package.absolute()), str(folder.absolute())), seconds)
    # Only the name is used of the worker's answer, so that nothing outside this folder is moved.
    if not (name := Path(output.strip()).name):
        raise CommandFailedError("the worker did not return the path of the compiled package")
    return folder / name


def plan_json(
    program: WorkerProgram,
    compiled: Path,
    function: str | None,
    hint: ReshapeHint,
    seconds: float = PROBE_TIMEOUT,
) -> str:
    """Return Core ML's compute plan of a compiled shard's function, as JSON; None is the only function.

    `hint` is the one with which the shard is loaded. Raises like `_run`.
    """
    named = () if function is None else ("--function", function)
    return _run(program, ("plan", str(compiled.absolute()), *named, "--reshape-hint", hint), seconds)


def _run(program: WorkerProgram, words: tuple[str, ...], seconds: float) -> str:
    """Run a command of the worker; return its standard output.

    Raises:
        CommandFailedError: Core ML refuses, crashes, or takes longer than `seconds`.
        StorageError: the worker cannot be started.
        AnespecError: the executable lacks the command.
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
            f"the worker has no command {words[0]}; build it again with `anespec worker build --again`"
        )
    if done.returncode:
        raise CommandFailedError(_reason(done))
    return done.stdout


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    """Return why a command failed: the error in its output, or else its last line and exit status."""
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
    """A Compiler (see coreml.compiled) that runs `anespec-worker compile`.

    `system` is the build of the system that has Core ML. `seconds` is the timeout for one package.
    """

    program: WorkerProgram
    system: str
    seconds: float = PROBE_TIMEOUT

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package to `destination`; see Compiler.

        Raises:
            StorageError: the worker cannot be started, or its result cannot be moved to `destination`.
            CommandFailedError: Core ML refuses the package; the text is Core ML's.
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
        """Return the system's build, since its Core ML compiles."""
        return f"worker, {self.system}"
