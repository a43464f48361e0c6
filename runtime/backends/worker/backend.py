"""The backend whose shards run in native workers.

Never run on a Mac. On Linux it is for tests alone: the worker's stand-in for Core ML has the portable backend
compute, and ANESPEC_STANDIN_PYTHON names the Python that does.
"""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.start_times import Starts
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.build import built_worker
from anespec.runtime.backends.worker.commands import WorkerCompiler
from anespec.runtime.backends.worker.loading import WorkerLoader
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import Stage
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.system.errors import MissingPackageError
from anespec.system.machine import system_build

STAND_IN = "ANESPEC_STANDIN_PYTHON"


@dataclass(frozen=True)
class WorkerBackend:
    """Core ML in processes of their own. `find` says where the worker is, if it was built."""

    name: str
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    find: Callable[[], WorkerProgram | None] = built_worker

    uses_threads = False
    takes_spans = False
    """Core ML has threads of its own."""

    def unavailable(self) -> str | None:
        """Why it cannot run here; see Backend."""
        if not _stands_in() and (reason := library.unavailable()) is not None:
            return reason
        return (
            None
            if self.find() is not None
            else "the worker's executable; build it with `anespec worker build`"
        )

    def library_version(self) -> str:
        """The worker's build, and that of the system whose Core ML it asks; see Backend."""
        return f"{self._program().build[:16]}, {system_of_core_ml()}"

    def open(self, artifact: Artifact, threads: int) -> WorkerVerifier:
        """Compile what never was, start the workers and have them load; see Backend.

        Raises:
            ArtifactError: see Backend; or Core ML refuses a shard or kills the worker that loads it.
            StorageError: there is no room for compiled shards or shared memory.
            AnespecError: workers die again and again while they load, and not of one shard.
        """
        manifest, program = artifact.manifest, self._program()

        def load(stages: Sequence[Stage]) -> WorkerVerifier:
            return WorkerVerifier(manifest, open_embedding(artifact), stages, program, self.limits)

        return self._loader(artifact).load(manifest.shards, load)

    def open_again(self, artifact: Artifact, threads: int) -> WorkerVerifier:
        """Compile all shards again; see Backend, and `open`."""
        self._loader(artifact).forget(artifact.manifest.shards)
        return self.open(artifact, threads)

    def starts(self, artifact: Artifact) -> Starts | None:
        """What starting took before, as kept beside the compiled shards; see Backend."""
        return self._loader(artifact).starts(artifact.manifest.shards)

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> WorkerRunner:
        """One shard by itself; see Backend, and `open`."""
        manifest, program = artifact.manifest, self._program()

        def load(stages: Sequence[Stage]) -> WorkerRunner:
            return WorkerRunner(stages[0], manifest, program, self.limits)

        return self._loader(artifact).load((shard,), load)

    def _loader(self, artifact: Artifact) -> WorkerLoader:
        return WorkerLoader(artifact, WorkerCompiler(self._program(), system_of_core_ml()), self.limits)

    def _program(self) -> WorkerProgram:
        if (program := self.find()) is None:
            raise MissingPackageError("the worker is not built; build it with `anespec worker build`")
        return program


def _stands_in() -> bool:
    return platform.system() == "Linux" and bool(os.environ.get(STAND_IN))


def system_of_core_ml() -> str:
    """The system that Core ML is a part of, or the stand-in's."""
    return f"stand-in, torch {version('torch')}" if _stands_in() else system_build()
