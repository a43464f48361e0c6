"""Shards compiled by the worker, which needs nothing but Core ML for it."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from anespec.manifests.child_python import child_environment
from anespec.manifests.errors import StorageError
from anespec.manifests.formatting import last_line
from anespec.runtime.backends.worker.process import WorkerProgram


@dataclass(frozen=True)
class WorkerCompiler:
    """A Compiler (see coreml.compiled) by `anespec-worker compile`; `system` is what Core ML is a part of."""

    program: WorkerProgram
    system: str

    def compile(self, package: Path, destination: Path) -> Path:
        """See Compiler.

        Raises:
            StorageError: the worker cannot be started, or what it made not be put there.
            RuntimeError: Core ML refuses, in its own words.
        """
        try:
            with TemporaryDirectory(dir=destination.parent, prefix=f"{destination.stem}.") as folder:
                done = self._run("compile", str(package.absolute()), folder)
                if done.returncode:
                    raise RuntimeError(_reason(done))
                # What is moved lies in this folder, whatever is said.
                if not (name := Path(done.stdout.strip()).name):
                    raise RuntimeError("the worker does not say what it compiled")
                return (Path(folder) / name).rename(destination)
        except OSError as error:
            raise StorageError(
                f"{package}: cannot be compiled to {destination} ({error.strerror})"
            ) from error

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                [*self.program.command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=child_environment(),
                check=False,
            )
        except OSError as error:
            raise self.program.not_started(error) from error

    def version(self) -> str:
        """The system's build, since it is Core ML that compiles."""
        return f"worker, {self.system}"


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    """What a worker that could not compile said: an error as in its replies, or else its last line."""
    try:
        error = json.loads(done.stdout)["error"]
        code = "" if error.get("code") is None else f" ({error.get('domain') or 'code'} {error['code']})"
        return f"{error['text']}{code}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return last_line(done.stderr) or f"the worker ended with {done.returncode}"
