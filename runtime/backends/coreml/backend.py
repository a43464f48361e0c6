"""The backend that has Core ML run an artifact's shards: each a model of its own, one pass through all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anespec.manifests.schema import HIDDEN_OUT, BestHead, HeadShard, LayerShard, Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.first_contact import LONGEST_CONTACT
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLLibrary, CoreMLTools
from anespec.runtime.backends.coreml.loading import ShardLoader
from anespec.runtime.backends.coreml.runner import CoreMLRunner
from anespec.runtime.backends.coreml.start_times import Starts
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.host_caches import HostCachesRunner, empty_caches
from anespec.runtime.backends.runner import ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage
from anespec.system.packages import missing_package

Way = tuple[str, bool]
"""A way through a shard: its path, and whether it leads to the best tokens alone."""


@dataclass(frozen=True)
class CoreMLBackend:
    """Core ML on some compute units. `contact_command` runs what tries shards first; None is ours."""

    name: str
    units: ComputeUnits
    core_ml: CoreMLLibrary = field(default_factory=CoreMLTools)
    contact_command: Sequence[str] | None = None
    contact_seconds: float = LONGEST_CONTACT

    uses_threads = False
    takes_spans = False
    """Core ML has threads of its own."""

    def unavailable(self) -> str | None:
        """Why it cannot run here; see Backend."""
        return library.unavailable() or missing_package("coremltools")

    def library_version(self) -> str:
        """coremltools' and the build of macOS; see Backend."""
        return self.core_ml.version()

    def open(self, artifact: Artifact, threads: int) -> ArtifactVerifier:
        """Compile and try what never was, and load all shards; see Backend.

        Raises:
            ArtifactError: see Backend; or Core ML refuses a shard, fails in it or is killed by it.
            StorageError: there is no room for the compiled shards.
        """
        manifest = artifact.manifest
        runners = self._runners(artifact, manifest.shards)
        embedding = open_embedding(artifact)
        return ArtifactVerifier(
            manifest,
            embedding,
            [LayerStage(runners[_way(shard)], HIDDEN_OUT, shard.states) for shard in manifest.layer_shards],
            [_head_stage(runners, shard) for shard in manifest.head_shards],
            best=[_head_stage(runners, shard) for shard in manifest.best_heads],
        )

    def open_again(self, artifact: Artifact, threads: int) -> ArtifactVerifier:
        """Compile all shards again and repeat their first contacts; see Backend, and `open`."""
        self._loader(artifact).forget(artifact.manifest.shards)
        return self.open(artifact, threads)

    def starts(self, artifact: Artifact) -> Starts | None:
        """What starting took before, as kept beside the compiled shards; see Backend."""
        return self._loader(artifact).starts(artifact.manifest.shards)

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """One shard by itself; see Backend, and `open`."""
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

    def _loader(self, artifact: Artifact) -> ShardLoader:
        return ShardLoader(
            artifact, self.core_ml, self.units, command=self.contact_command, seconds=self.contact_seconds
        )


def _way(shard: Shard) -> Way:
    return shard.path, isinstance(shard, BestHead)


def _head_stage(runners: Mapping[Way, ShardRunner], shard: HeadShard) -> HeadStage:
    return HeadStage(runners[_way(shard)], tuple(spec.name for spec in shard.outputs))
