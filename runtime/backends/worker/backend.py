"""The backend whose shards run in native workers.

It has never run on a Mac. On Linux it serves tests only: the worker's stand-in for Core ML computes with the
portable backend, in the Python that ANESPEC_STANDIN_PYTHON names.
"""

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol, TypeVar

from anespec.manifests.schema import Manifest, Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.backend import Arithmetic
from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.compiled import KEY_DIGITS, CompiledShard
from anespec.runtime.backends.coreml.load_probe import Outcome
from anespec.runtime.backends.coreml.memory import (
    CompiledShards,
    is_stale,
    lasts,
    met_before,
    refused,
    remember,
    remember_start,
)
from anespec.runtime.backends.coreml.start_times import Starts, StartTimes
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.build import built_worker
from anespec.runtime.backends.worker.commands import WorkerCompiler
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import Stage, stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.runtime.backends.worker.worker_pool import LoadLostError, ShardRefusedError, WorkersDieError
from anespec.system.errors import AnespecError, ArtifactError, MissingPackageError
from anespec.system.machine import system_build
from anespec.system.progress import idle

# Core ML may crash a worker, so the first time that a worker loads a shard is the shard's load probe: a crash
# or a refusal is recorded beside the compiled shard, for this build of the worker (see coreml.memory). If the
# worker held several shards, each is loaded alone to find the cause.

_log = logging.getLogger(__name__)


class Started(Protocol):
    """Stages that workers have loaded."""

    @property
    def starts(self) -> Mapping[str, StartTimes]:
        """The start times of each stage, by the path of its compiled shard."""
        ...


OpenedT = TypeVar("OpenedT", bound=Started)


class WorkerLoader:
    """Loads an artifact's shards in workers, and records which shards fail.

    A stale compiled shard is compiled again, once.
    """

    def __init__(
        self, manifest: Manifest, shards: CompiledShards, program: WorkerProgram, limits: WorkerLimits
    ) -> None:
        self._manifest = manifest
        self._shards = shards
        self._program = program
        self._limits = limits

    def load(self, shards: Sequence[Shard], load: Callable[[Sequence[Stage]], OpenedT]) -> OpenedT:
        """Run `load` for the stages of these shards, and return its result.

        If an upgrade of the system made a compiled shard stale, the shard is compiled again, once.

        Raises:
            ArtifactError: Core ML refuses a shard or crashes its worker, now or in an earlier start.
            AnespecError: workers die repeatedly, and no single shard is the cause.
            StorageError: there is no space for compiled shards or shared memory.
        """
        made = {shard.path: self._shards.of(shard) for shard in shards}
        while True:
            known = list(made.values())
            for compiled in known:
                met_before(compiled, self._shards.record(compiled))
            try:
                opened = load(self._stages(known))
                self._remember_starts(known, opened.starts)
                return opened
            except ShardRefusedError as error:
                culprit = next((c for c in known if _path(c) == error.stage), None)
                if culprit is None:
                    raise
                if not is_stale(culprit, error.text):
                    raise self._remembered(culprit, error.text) from error
            except WorkersDieError as error:
                raise self._blamed(known, error) from error
            made[culprit.shard.path] = self._shards.again(culprit)

    def _blamed(self, known: Sequence[CompiledShard], died: WorkersDieError) -> AnespecError:
        """Find and record the shard that crashes workers, and return the error to raise.

        If no single shard is the cause, or it may be temporary, that is `died` itself.
        """
        if not isinstance(died.lost, LoadLostError) or not lasts(died.lost.text):
            return died
        suspects = [compiled for compiled in known if _path(compiled) in died.lost.stages]
        if len(suspects) == 1:
            return self._remembered(suspects[0], died.lost.text)
        for suspect in suspects:
            _log.info("loading %s alone", suspect.shard.path)
            if (text := self._failure_alone(suspect)) is not None:
                return self._remembered(suspect, text)
        return died

    def _remember_starts(self, known: Sequence[CompiledShard], starts: Mapping[str, StartTimes]) -> None:
        for compiled in known:
            if (start := starts.get(_path(compiled))) is not None:
                remember_start(compiled, self._shards.record(compiled), start)

    def _failure_alone(self, compiled: CompiledShard) -> str | None:
        try:
            for stage in self._stages([compiled]):
                WorkerRunner(stage, self._manifest, self._program, self._limits).close()
        except ShardRefusedError as error:
            return error.text
        except WorkersDieError as error:
            return str(error) if error.lost is None else error.lost.text
        return None

    def _remembered(self, compiled: CompiledShard, text: str) -> ArtifactError:
        remember(self._shards.record(compiled), Outcome(error=text))
        return refused(compiled, text, compiled.doubt)

    def _stages(self, shards: Sequence[CompiledShard]) -> tuple[Stage, ...]:
        manifest = self._manifest
        paths = {compiled.shard.path: compiled.path.absolute() for compiled in shards}
        ways = [way for compiled in shards for way in manifest.ways_through(compiled.shard)]
        return stages_of(manifest, ways, paths)


def _path(compiled: CompiledShard) -> str:
    """Return the path by which a stage refers to a compiled shard."""
    return str(compiled.path.absolute())


STAND_IN = "ANESPEC_STANDIN_PYTHON"


@dataclass(frozen=True)
class WorkerBackend:
    """Core ML in worker processes. `find` returns the worker's executable, None if it was not built."""

    name: str
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    find: Callable[[], WorkerProgram | None] = built_worker

    uses_threads = False
    arithmetic = Arithmetic.ENGINE
    takes_spans = False
    """Core ML chooses its own number of threads, and its shards have a fixed number of slots."""

    def unavailable(self) -> str | None:
        """Return why it cannot run here; see Backend."""
        if not _stands_in() and (reason := library.unavailable()) is not None:
            return reason
        return (
            None
            if self.find() is not None
            else "the worker's executable; build it with `anespec worker build`"
        )

    def library_version(self) -> str:
        """Return the worker's build and the system's, which has Core ML; see Backend."""
        return f"{self._program().build[:16]}, {system_of_core_ml()}"

    def open(self, artifact: Artifact, threads: int, compiling: Callable[[], None] = idle) -> WorkerVerifier:
        """Compile the shards that are new here, start the workers and load all shards in them; see Backend.

        Raises:
            ArtifactError: see Backend; or Core ML refuses a shard or crashes its worker.
            StorageError: there is no space for compiled shards or shared memory.
            AnespecError: workers die repeatedly while they load, and no single shard is the cause.
        """
        manifest, program = artifact.manifest, self._program()

        def load(stages: Sequence[Stage]) -> WorkerVerifier:
            return WorkerVerifier(manifest, open_embedding(artifact), stages, program, self.limits)

        compiling()
        return self._loader(artifact, program).load(manifest.shards, load)

    def open_again(self, artifact: Artifact, threads: int) -> WorkerVerifier:
        """Compile all shards again; see Backend, and `open`."""
        self._shards(artifact, self._program()).forget(artifact.manifest.shards)
        return self.open(artifact, threads)

    def starts(self, artifact: Artifact) -> Starts | None:
        """Return the start times that are recorded beside the compiled shards; see Backend."""
        return self._shards(artifact, self._program()).starts(artifact.manifest.shards)

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> WorkerRunner:
        """Load one shard alone; see Backend, and `open`."""
        manifest, program = artifact.manifest, self._program()

        def load(stages: Sequence[Stage]) -> WorkerRunner:
            return WorkerRunner(stages[0], manifest, program, self.limits)

        return self._loader(artifact, program).load((shard,), load)

    def _shards(self, artifact: Artifact, program: WorkerProgram) -> CompiledShards:
        compiler = WorkerCompiler(program, system_of_core_ml())
        return CompiledShards(artifact, compiler, f"worker-{program.build[:KEY_DIGITS]}.json")

    def _loader(self, artifact: Artifact, program: WorkerProgram) -> WorkerLoader:
        return WorkerLoader(artifact.manifest, self._shards(artifact, program), program, self.limits)

    def _program(self) -> WorkerProgram:
        if (program := self.find()) is None:
            raise MissingPackageError("the worker is not built; build it with `anespec worker build`")
        return program


def _stands_in() -> bool:
    return platform.system() == "Linux" and bool(os.environ.get(STAND_IN))


def system_of_core_ml() -> str:
    """Return the build of macOS, which Core ML is part of, or the version of the stand-in."""
    return f"stand-in, torch {version('torch')}" if _stands_in() else system_build()
