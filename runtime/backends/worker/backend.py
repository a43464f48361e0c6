"""The backend whose shards run in native workers.

Never run on a Mac. On Linux it is for tests alone: the worker's stand-in for Core ML has the portable backend
compute, and ANESPEC_STANDIN_PYTHON names the Python that does.
"""

import logging
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from anespec.manifests.coreml_errors import known_error
from anespec.manifests.errors import ArtifactError, MissingPackageError
from anespec.manifests.machine import system_build
from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.compiled import CompiledShard, compiled_shard, discard
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.build import built_worker
from anespec.runtime.backends.worker.compiling import WorkerCompiler
from anespec.runtime.backends.worker.crew import ShardRefusedError
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import Stage, stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier

_log = logging.getLogger(__name__)

STAND_IN = "ANESPEC_STANDIN_PYTHON"

OpenedT = TypeVar("OpenedT")


@dataclass(frozen=True)
class WorkerBackend:
    """Core ML in processes of their own. `find` says where the worker is, if it was built."""

    name: str
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    find: Callable[[], WorkerProgram | None] = built_worker

    uses_threads = False
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
            ArtifactError: see Backend; or Core ML refuses a shard.
            StorageError: there is no room for compiled shards or shared memory.
            AnespecError: a worker dies again and again while it loads.
        """
        manifest, program = artifact.manifest, self._program()

        def load(stages: Sequence[Stage]) -> WorkerVerifier:
            return WorkerVerifier(manifest, open_embedding(artifact), stages, program, self.limits)

        return _loaded(artifact, manifest.shards, program, load)

    def open_again(self, artifact: Artifact, threads: int) -> WorkerVerifier:
        """Compile all shards anew; see Backend, and `open`."""
        compiler = WorkerCompiler(self._program(), system_of_core_ml())
        for shard in artifact.manifest.shards:
            discard(compiled_shard(artifact, shard, compiler, _log.info))
        return self.open(artifact, threads)

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> WorkerRunner:
        """One shard by itself; see Backend, and `open`."""
        manifest, program = artifact.manifest, self._program()

        def load(stages: Sequence[Stage]) -> WorkerRunner:
            (stage,) = stages
            return WorkerRunner(stage, manifest, program, self.limits)

        return _loaded(artifact, (shard,), program, load)

    def _program(self) -> WorkerProgram:
        if (program := self.find()) is None:
            raise MissingPackageError("the worker is not built; build it with `anespec worker build`")
        return program


def _loaded(
    artifact: Artifact,
    shards: Sequence[Shard],
    program: WorkerProgram,
    load: Callable[[Sequence[Stage]], OpenedT],
) -> OpenedT:
    """What `load` makes of these shards' stages; one that an upgrade of the system made stale is compiled
    again, once."""
    compiler = WorkerCompiler(program, system_of_core_ml())
    made: dict[str, CompiledShard] = {}
    while True:
        for shard in shards:
            if shard.path not in made:
                made[shard.path] = compiled_shard(artifact, shard, compiler, _log.info)
        paths = {path: compiled.path.absolute() for path, compiled in made.items()}
        try:
            return load(stages_of(artifact.manifest, shards, paths))
        except ShardRefusedError as refused:
            stale = next((c for c in made.values() if _was_refused(c, refused)), None)
            if stale is None or not _is_stale(stale, refused):
                doubt = stale.doubt if stale is not None else None
                raise ArtifactError(f"{refused} ({doubt})" if doubt else str(refused)) from refused
        _log.warning("%s is compiled again, since Core ML cannot load it any more", stale.shard.path)
        discard(stale)
        del made[stale.shard.path]


def _is_stale(compiled: CompiledShard, refused: ShardRefusedError) -> bool:
    """Whether compiling it again may mend what was refused: it was not compiled just now."""
    known = known_error(refused.text)
    return not compiled.made and known is not None and known.stale


def _was_refused(compiled: CompiledShard, refused: ShardRefusedError) -> bool:
    return Path(refused.stage) == compiled.path.absolute()


def _stands_in() -> bool:
    return platform.system() == "Linux" and bool(os.environ.get(STAND_IN))


def system_of_core_ml() -> str:
    """The system that Core ML is a part of, or what stands in for it."""
    return f"stand-in, torch {version('torch')}" if _stands_in() else system_build()
