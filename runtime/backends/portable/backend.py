"""A backend that executes .mlpackages with a library; the library is imported when a shard is opened."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, LayerShard, Manifest, Shard, StateSpec
from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.host_caches import HostCachesRunner, empty_caches
from anespec.runtime.backends.portable.declared import load_declared
from anespec.runtime.backends.portable.program import Operation, Program, chain, merge
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE, fuse_slot_writes
from anespec.runtime.backends.runner import PoolNames, ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage
from anespec.system.packages import missing_package

# Turn caches of the host into states of the program, for a library whose states are faster than inputs.
#
# After a pass the host would put the new rows into their slots; the pass itself does the same to the slots
# that it attends to. So a program that keeps those gives the same bits.


def caches_as_states(program: Program, new_rows: Mapping[str, str]) -> Program | None:
    """`program` with states in place of inputs; `new_rows` are the outputs by the inputs that they belong to.

    None where the program does not attend to just what the host would write.
    """
    if not new_rows.keys() <= program.inputs.keys():
        return None
    written: dict[str, list[Operation]] = {name: [] for name in new_rows}
    for op in fuse_slot_writes(program).operations:
        if op.kind == SLOT_WRITE and op.inputs["state"][0] in written:
            written[op.inputs["state"][0]].append(op)
    for name, writes in written.items():
        if len(writes) != 1 or writes[0].inputs["new"] != (new_rows[name],):
            return None
    held = {name: f"{name}/held" for name in new_rows}
    reads = [Operation("read_state", value, {"input": (name,)}, (value,)) for name, value in held.items()]
    writing = {
        writes[0].outputs: Operation(
            "write_state", f"{name}/written", {"input": (name,), "data": writes[0].outputs}, ()
        )
        for name, writes in written.items()
    }
    operations = list(reads)
    for op in program.operations:
        inputs = {key: tuple(held.get(name, name) for name in names) for key, names in op.inputs.items()}
        operations.append(replace(op, inputs=inputs))
        if op.outputs in writing:
            operations.append(writing[op.outputs])
    shapes = {name: tuple(size or 1 for size in program.inputs[name]) for name in new_rows}
    return replace(
        program,
        inputs={name: shape for name, shape in program.inputs.items() if name not in new_rows},
        states={**program.states, **shapes},
        outputs=tuple(name for name in program.outputs if name not in new_rows.values()),
        operations=tuple(operations),
    )


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
        found = [load_declared(artifact, each) for each in manifest.best_heads]
        best = [merge(found)] if found else []
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
            [HeadStage(self.runner()(each, threads, ()), each.outputs) for each in best],
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
