"""The backend that runs an artifact's shards with Core ML, each as a model of its own."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from anespec.manifests.channel_layout import ChannelLayout, shape_at
from anespec.manifests.schema import HIDDEN_OUT, BestHead, HeadShard, LayerShard, Manifest, Shard, TensorSpec
from anespec.manifests.store import Artifact
from anespec.runtime.backends.backend import Arithmetic
from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.compiled import CompiledShard
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLLibrary, CoreMLTools, LoadedModel
from anespec.runtime.backends.coreml.load_probe import LoadProbe, Shape, TriedPass, start_shard
from anespec.runtime.backends.coreml.memory import (
    CompiledShards,
    is_stale,
    met_before,
    refused,
    remember,
    remember_start,
)
from anespec.runtime.backends.coreml.probing import PROBE_TIMEOUT, run_probes
from anespec.runtime.backends.coreml.runner import ANY_WIDTH, CoreMLRunner
from anespec.runtime.backends.coreml.start_times import Starts
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.host_caches import HostCachesRunner, empty_caches
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage
from anespec.system.packages import missing_package
from anespec.system.progress import idle

_log = logging.getLogger(__name__)

Models = Mapping[int | None, LoadedModel]
"""Loaded models by the T that they run, or by ANY_WIDTH."""

ModelsByName = Mapping[str | None, LoadedModel]


@dataclass(frozen=True)
class Function:
    """A function of a shard.

    `rows` is the T that it runs, or ANY_WIDTH. `name` is None for the only function of a package. `layout` is
    that of its channel tensors.
    """

    rows: int | None
    name: str | None
    layout: ChannelLayout
    outputs: tuple[TensorSpec, ...]


def functions_of(manifest: Manifest, shard: Shard) -> tuple[Function, ...]:
    """Return the functions of a shard that are loaded; that of the block's width comes first."""
    return tuple(
        Function(each.rows, manifest.loaded_name(way, each), each.layout, way.program_outputs)
        for way in manifest.ways_through(shard)
        for each in manifest.functions_of(way)
    )


class ShardLoader:
    """Loads an artifact's shards on the given compute units."""

    def __init__(
        self,
        manifest: Manifest,
        shards: CompiledShards,
        core_ml: CoreMLLibrary,
        units: ComputeUnits,
        *,
        command: Sequence[str] | None,
        seconds: float,
    ) -> None:
        """Load nothing yet; `command` and `seconds` are the arguments of `run_probes`."""
        self._manifest = manifest
        self._shards = shards
        self._core_ml = core_ml
        self._units = units
        self._command = command
        self._seconds = seconds

    def load(self, shards: Sequence[Shard]) -> Iterator[tuple[Shard, Models]]:
        """Yield each shard with its loaded models, once for each kind of output that it has.

        All shards are compiled and probed before the first one is loaded.

        Raises:
            ArtifactError: Core ML refuses a shard, or fails or crashes in it.
            StorageError: the disk has no space for the compiled shards.
        """
        for compiled in self._met([self._shards.of(shard) for shard in shards]):
            models, manifest = self._loaded(compiled), self._manifest
            for way in manifest.ways_through(compiled.shard):
                functions = manifest.functions_of(way)
                yield way, {each.rows: models[manifest.loaded_name(way, each)] for each in functions}

    def _met(self, shards: Sequence[CompiledShard]) -> list[CompiledShard]:
        """Probe the shards that no process has loaded yet; return all, stale ones replaced."""
        met = {compiled.shard.path: compiled for compiled in shards}
        waiting = [compiled for compiled in shards if not met_before(compiled, self._shards.record(compiled))]
        while waiting:
            _log.info("load probe of %s", ", ".join(compiled.shard.path for compiled in waiting))
            probes = [self._probe(compiled) for compiled in waiting]
            with closing(run_probes(probes, command=self._command, seconds=self._seconds)) as outcomes:
                for outcome in outcomes:
                    compiled = waiting.pop(0)
                    if outcome.error is not None and is_stale(compiled, outcome.error):
                        waiting.insert(0, self._shards.again(compiled))
                        met[compiled.shard.path] = waiting[0]
                        break
                    remember(self._shards.record(compiled), outcome)
                    _log.info("load probe of %s: %s", compiled.shard.path, outcome.first)
                    if outcome.error is not None:
                        raise refused(compiled, outcome.error, compiled.doubt)
        return list(met.values())

    def _loaded(self, compiled: CompiledShard) -> ModelsByName:
        try:
            return self._started(compiled)
        # Core ML's errors arrive as RuntimeError, ValueError or plain Exception.
        except Exception as error:
            if not is_stale(compiled, str(error)):
                raise refused(compiled, str(error), compiled.doubt) from error
        (compiled,) = self._met([self._shards.again(compiled)])
        try:
            return self._started(compiled)
        except Exception as error:
            raise refused(compiled, str(error)) from error

    def _started(self, compiled: CompiledShard) -> ModelsByName:
        """Load a shard, run each of its widths once, and record the times; return its models."""
        models, times = start_shard(self._probe(compiled), self._core_ml)
        remember_start(compiled, self._shards.record(compiled), times)
        return models

    def _probe(self, compiled: CompiledShard) -> LoadProbe:
        return probe_of(self._manifest, compiled, self._units)


def probe_of(manifest: Manifest, compiled: CompiledShard, units: ComputeUnits) -> LoadProbe:
    """Return the load probe of a compiled shard: every function at every width in use, the block first.

    Core ML prepares a model with flexible shapes anew for each width, so each width is run.
    """
    shard = compiled.shard
    given = {spec.name for spec in shard.inputs}
    return LoadProbe(
        shard=shard.path,
        compiled=str(compiled.path.absolute()),
        units=units,
        hint=manifest.reshape_hint,
        passes=tuple(
            _tried(shard, each, rows)
            for each in functions_of(manifest, shard)
            for rows in (_block_first(manifest) if each.rows is ANY_WIDTH else (each.rows,))
        ),
        states={state.name: state.shape for state in shard.program_states},
        masks=tuple(
            pool.mask_input for pool in manifest.pools if pool.mask_input in given and pool.reads == "mask"
        ),
        writes=tuple(pool.write_input for pool in manifest.pools if pool.write_input in given),
        places=tuple(
            pool.mask_input for pool in manifest.pools if pool.mask_input in given and pool.reads == "chunk"
        ),
        live=tuple(pool.live_input for pool in manifest.pools if pool.live_input in given),
    )


def _block_first(manifest: Manifest) -> tuple[int, ...]:
    return tuple(dict.fromkeys((manifest.block, *manifest.widths)))


def _tried(shard: Shard, function: Function, rows: int) -> TriedPass:
    def shapes(specs: Sequence[TensorSpec]) -> dict[str, Shape]:
        return {spec.name: shape_at(spec.shape, rows, function.layout) for spec in specs}

    return TriedPass(
        function=function.name,
        rows=rows,
        inputs=shapes(shard.program_inputs),
        outputs=shapes(function.outputs),
    )


Way = tuple[str, bool]
"""The key of a shard's runner: the shard's path, and whether its outputs are best tokens only."""


@dataclass(frozen=True)
class CoreMLBackend:
    """Core ML on the given compute units.

    `probe_command` starts the process that runs load probes; None starts `probe_process`. A probe of one
    shard is stopped after `probe_seconds`.
    """

    name: str
    units: ComputeUnits
    core_ml: CoreMLLibrary = field(default_factory=CoreMLTools)
    probe_command: Sequence[str] | None = None
    probe_seconds: float = PROBE_TIMEOUT

    uses_threads = False
    arithmetic = Arithmetic.ENGINE
    takes_spans = False
    """Core ML chooses its own number of threads, and its shards have a fixed number of slots."""

    def unavailable(self) -> str | None:
        """Return why it cannot run here; see Backend."""
        return library.unavailable() or missing_package("coremltools")

    def library_version(self) -> str:
        """Return coremltools' version and the build of macOS; see Backend."""
        return self.core_ml.version()

    def open(
        self, artifact: Artifact, threads: int, compiling: Callable[[], None] = idle
    ) -> ArtifactVerifier:
        """Compile and probe the shards that are new here, and load all; see Backend.

        Raises:
            ArtifactError: see Backend; or Core ML refuses a shard, or fails or crashes in it.
            StorageError: the disk has no space for the compiled shards.
        """
        manifest = artifact.manifest
        compiling()
        runners = self._runners(artifact, manifest.shards)
        embedding = open_embedding(artifact)
        return ArtifactVerifier(
            manifest,
            embedding,
            [
                LayerStage(runners[_way(shard)], HIDDEN_OUT, shard.states, shard.folds)
                for shard in manifest.layer_shards
            ],
            [_head_stage(runners, shard) for shard in manifest.head_shards],
            best=[_head_stage(runners, shard) for shard in manifest.best_heads],
        )

    def open_again(self, artifact: Artifact, threads: int) -> ArtifactVerifier:
        """Compile all shards again and repeat their load probes; see Backend, and `open`."""
        self._shards(artifact).forget(artifact.manifest.shards)
        return self.open(artifact, threads)

    def starts(self, artifact: Artifact) -> Starts | None:
        """Return the start times that are recorded beside the compiled shards; see Backend."""
        return self._shards(artifact).starts(artifact.manifest.shards)

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """Load one shard alone; see Backend, and `open`."""
        return self._runners(artifact, (shard,))[_way(shard)]

    def _runners(self, artifact: Artifact, shards: Sequence[Shard]) -> dict[Way, ShardRunner]:
        manifest, pools = artifact.manifest, artifact.manifest.pools
        runners: dict[Way, ShardRunner] = {}
        for shard, models in self._loader(artifact).load(shards):
            layouts = {function.rows: function.layout for function in manifest.functions_of(shard)}
            runner = CoreMLRunner(shard, models, layouts)
            caches = empty_caches(shard.states, pools) if isinstance(shard, LayerShard) else {}
            runners[_way(shard)] = HostCachesRunner(runner, caches) if caches else runner
        return runners

    def _shards(self, artifact: Artifact) -> CompiledShards:
        return CompiledShards(artifact, self.core_ml, f"{self.units}.json")

    def _loader(self, artifact: Artifact) -> ShardLoader:
        return ShardLoader(
            artifact.manifest,
            self._shards(artifact),
            self.core_ml,
            self.units,
            command=self.probe_command,
            seconds=self.probe_seconds,
        )


def _way(shard: Shard) -> Way:
    return shard.path, isinstance(shard, BestHead)


def _head_stage(runners: Mapping[Way, ShardRunner], shard: HeadShard) -> HeadStage:
    return HeadStage(runners[_way(shard)], tuple(spec.name for spec in shard.outputs))
