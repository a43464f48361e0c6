"""Core ML's plan of an artifact: where it would run every operation of the packages as they are shipped.

Core ML can end the process that asks it, so no plan is made in this one: the native worker is asked where it
was built, which plans with the hint that shards are loaded with, and else coremltools in a child process,
which knows no hints. The worker is not built for a plan: that takes a minute, and Swift. macOS only, and not
run on a Mac by this project yet.
"""

from typing import Protocol

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.residency import Plan, PlanSource, ResidencyVerdict, ShardComputePlan
from anespec.manifests.schema import Manifest, Shapes, Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime.backends.coreml.library import has_neural_engine
from anespec.runtime.backends.worker.build import built_worker
from anespec.system.formatting import counted, listed
from anespec.system.progress import StepReport
from anespec.validate.residency.coremltools_plan import COREMLTOOLS
from anespec.validate.residency.plan_process import ChildPlans
from anespec.validate.residency.worker_plan import WorkerPlans


class PlanMaker(Protocol):
    """Who asks Core ML for plans."""

    def circumstances(self, artifact: Artifact) -> RunEnvironment:
        """Where a plan that it makes of an artifact here holds."""
        ...

    def plan(self, artifact: Artifact, shard: Shard) -> ShardComputePlan:
        """The plan of one shard for each of its functions; what Core ML refuses or dies of is its refusal.

        Raises:
            ArtifactError: the shard is missing or damaged.
            AnespecError: Core ML cannot be asked, whatever the shard.
        """
        ...


def neural_engine() -> PlanMaker | None:
    """The way to Core ML's plans where this machine has a Neural Engine, else None."""
    if not has_neural_engine():
        return None
    program = built_worker()
    return ChildPlans() if program is None else WorkerPlans(program)


def measure_plan(artifact: Artifact, coreml: PlanMaker, progress: StepReport) -> Plan:
    """Ask Core ML for the plan of every shard; one that it refuses or dies of is kept as its refusal.

    Raises:
        ArtifactError: a shard is missing or damaged.
        AnespecError: Core ML cannot be asked.
    """
    shards = []
    for shard in artifact.manifest.shards:
        progress(f"compiling {shard.path}")
        shards.append(coreml.plan(artifact, shard))
    return Plan(
        source=PlanSource.MEASURED,
        circumstances=coreml.circumstances(artifact),
        block=artifact.manifest.block,
        shards=tuple(shards),
    )


def plan_caveats(manifest: Manifest, verdict: ResidencyVerdict) -> tuple[str, ...]:
    """What a range's plan leaves open: other widths than its default, and the hint that shards are loaded
    with, where it was asked without."""
    if verdict.source is PlanSource.PREDICTED or manifest.shapes is not Shapes.RANGE:
        return ()
    others = [str(width) for width in manifest.widths if width != manifest.default_rows]
    planned = counted(manifest.default_rows, "row")
    caveats = [
        f"the plan is of passes over {planned}, the default shape, and says nothing of passes over "
        f"{listed(others)}; their times do (anespec selftest)"
    ]
    if verdict.circumstances.backend == COREMLTOOLS and manifest.reshape_hint is not ReshapeHint.NONE:
        caveats.append(
            "the plan was asked through coremltools, which knows no hint for shapes that vary, since no "
            "worker was built; `anespec worker build`, then `validate --gate residency`, asks with the hint"
        )
    return tuple(caveats)
