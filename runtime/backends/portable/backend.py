"""A backend that executes .mlpackages with a library; the library is imported when a shard is opened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from anespec.manifests.packages import missing_package
from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, LayerShard, Manifest, Shard, StateSpec
from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.host_caches import HostCachesRunner, empty_caches
from anespec.runtime.backends.portable.cache_states import caches_as_states
from anespec.runtime.backends.portable.declared import load_declared
from anespec.runtime.backends.portable.program import Program, chain, merge
from anespec.runtime.backends.runner import PoolNames, ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage

MakeRunner = Callable[[Program, int, tuple[PoolNames, ...]], ShardRunner]


@dataclass(frozen=True)
class PortableBackend:
    """`library` is the package that it needs; `runner` imports it and returns what makes runners.

    `holds_caches` is for a library whose states cost less than inputs that change a little in every pass.
    """

    name: str
    library: str
    runner: Callable[[], MakeRunner]
    holds_caches: bool

    uses_threads = True
    takes_spans = True

    def unavailable(self) -> str | None:
        """Why it cannot run here; see Backend."""
        return missing_package(self.library)

    def library_version(self) -> str:
        """The library's; see Backend."""
        return version(self.library)

    def open(self, artifact: Artifact, threads: int) -> ArtifactVerifier:
        """Load an artifact's shards, all layers chained into one program and all heads into another.

        Raises:
            ArtifactError: see Backend.
        """
        manifest = artifact.manifest
        body = chain([load_declared(artifact, s) for s in manifest.layer_shards], HIDDEN_IN, HIDDEN_OUT)
        head = merge([load_declared(artifact, s) for s in manifest.head_shards])
        embedding = open_embedding(artifact)
        states = tuple(state for shard in manifest.layer_shards for state in shard.states)
        pools = tuple(
            PoolNames(
                pool.mask_input,
                pool.write_input,
                tuple(state.name for state in states if state.pool == pool.name),
                pool.slots,
                pool.region_slots * (artifact.sequences or manifest.sequences),
            )
            for pool in manifest.pools
        )
        return ArtifactVerifier(
            manifest,
            embedding,
            [LayerStage(self._runner(body, threads, manifest, states, pools), body.outputs[0], states)],
            [HeadStage(self.runner()(head, threads, ()), head.outputs)],
            artifact.sequences,
        )

    def open_again(self, artifact: Artifact, threads: int) -> None:
        """Nothing of an opening is kept; see Backend."""

    def starts(self, artifact: Artifact) -> None:
        """A start prepares nothing that takes long; see Backend."""

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """One shard by itself; see Backend."""
        states = shard.states if isinstance(shard, LayerShard) else ()
        return self._runner(load_declared(artifact, shard), threads, artifact.manifest, states, ())

    def _runner(
        self,
        program: Program,
        threads: int,
        manifest: Manifest,
        states: Sequence[StateSpec],
        pools: tuple[PoolNames, ...],
    ) -> ShardRunner:
        """Return a runner with all states, including those that the host holds."""
        new_rows = {state.name: state.new_rows for state in states if state.held == "host"}
        if new_rows and self.holds_caches and (held := caches_as_states(program, new_rows)) is not None:
            return self.runner()(held, threads, pools)
        runner = self.runner()(program, threads, pools)
        return HostCachesRunner(runner, empty_caches(states, manifest.pools)) if new_rows else runner
