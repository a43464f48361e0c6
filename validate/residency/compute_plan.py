"""Get Core ML's plan of an artifact: the device of every operation of the packages.

Core ML can crash the process that asks it, so plans are made in other processes. The native worker is used if
it was built; it plans with the reshape hint that shards are loaded with. Otherwise coremltools runs in a
child process, without hints. The worker is not built for a plan, since that takes a minute and Swift. macOS
only; this project has not run it on a Mac yet.
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
    """Asks Core ML for plans."""

    def circumstances(self, artifact: Artifact) -> RunEnvironment:
        """Return the environment in which its plans of an artifact hold."""
        ...

    def plan(self, artifact: Artifact, shard: Shard) -> ShardComputePlan:
        """Return the plan of one shard for each of its functions; a shard that Core ML refuses or crashes on
        has a refusal.

        Raises:
            ArtifactError: the shard is missing or damaged.
            AnespecError: Core ML gives no plans at all here.
        """
        ...


def neural_engine() -> PlanMaker | None:
    """Return what makes Core ML's plans if this machine has a Neural Engine, else None."""
    if not has_neural_engine():
        return None
    program = built_worker()
    return ChildPlans() if program is None else WorkerPlans(program)


def measure_plan(artifact: Artifact, coreml: PlanMaker, progress: StepReport) -> Plan:
    """Ask Core ML for the plan of every shard; a shard that it refuses or crashes on has a refusal.

    Raises:
        ArtifactError: a shard is missing or damaged.
        AnespecError: Core ML gives no plans at all here.
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
    """Return what the plan of a range leaves open.

    It covers the default width only, and it may have been made without the hint that shards are loaded with.
    """
    if verdict.source is PlanSource.PREDICTED or manifest.shapes is not Shapes.RANGE:
        return ()
    others = [str(width) for width in manifest.widths if width != manifest.default_rows]
    planned = counted(manifest.default_rows, "row")
    caveats = [
        f"the plan covers passes of {planned}, the default shape, and not passes of {listed(others)}; "
        "their times show where they run (anespec selftest)"
    ]
    if verdict.circumstances.backend == COREMLTOOLS and manifest.reshape_hint is not ReshapeHint.NONE:
        caveats.append(
            "the plan was made without the reshape hint, since coremltools has none and no worker was built; "
            "to plan with it, run `anespec worker build`, then `validate --gate residency`"
        )
    return tuple(caveats)
