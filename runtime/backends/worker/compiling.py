"""Shards compiled by the worker, which needs nothing but Core ML for it."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from anespec.manifests.errors import StorageError
from anespec.runtime.backends.coreml.first_contact import LONGEST_CONTACT
from anespec.runtime.backends.worker.commands import compile_package
from anespec.runtime.backends.worker.process import WorkerProgram


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
