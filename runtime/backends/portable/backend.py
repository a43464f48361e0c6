"""A backend that executes .mlpackages with a library; the library is imported when a shard is opened."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from anespec.manifests.packages import missing_package
from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.portable.declared import load_declared
from anespec.runtime.backends.portable.program import Program, chain, merge
from anespec.runtime.backends.runner import PoolNames, ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage

MakeRunner = Callable[[Program, int, tuple[PoolNames, ...]], ShardRunner]


@dataclass(frozen=True)
class PortableBackend:
    """`library` is the package that it needs; `runner` imports it and returns what makes runners."""

    name: str
    library: str
    runner: Callable[[], MakeRunner]

    uses_threads = True

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
        make = self.runner()
        listed = {state.name: state for shard in manifest.layer_shards for state in shard.states}
        states = tuple(listed[name] for name in body.states)
        pools = tuple(
            PoolNames(
                pool.mask_input,
                pool.write_input,
                tuple(state.name for state in states if state.pool == pool.name),
                pool.slots,
            )
            for pool in manifest.pools
        )
        return ArtifactVerifier(
            manifest,
            embedding,
            [LayerStage(make(body, threads, pools), body.outputs[0], states)],
            [HeadStage(make(head, threads, ()), head.outputs)],
        )

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """One shard by itself; see Backend."""
        return self.runner()(load_declared(artifact, shard), threads, ())
