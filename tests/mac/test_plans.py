"""Core ML's compute plan names every operation of the package; on a virtual machine none is on an engine."""

from collections import Counter

import pytest
from mac_core_ml import Built, CoreMLHere, Record

from anespec.manifests.residency import Device, ShardComputePlan
from anespec.manifests.schema import Shapes, Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.library import has_neural_engine
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.validate.residency.coremltools_plan import PlanningTools
from anespec.validate.residency.shard_view import view_artifact
from anespec.validate.residency.worker_plan import WorkerPlans

OPTIONS = [{"shapes": Shapes.STATIC}, {"shapes": Shapes.RANGE}, {"shapes": Shapes.FUNCTIONS}]


def require_whole(plan: ShardComputePlan, artifact: Artifact, shard: Shard, record_property: Record) -> None:
    """Fail where the plan lacks an operation, or says of none where it would run."""
    assert plan.refusal is None, plan.refusal
    view = next(view for view in view_artifact(artifact).shards if view.name == shard.path)
    for function, planned in zip(view.functions, plan.functions, strict=True):
        kinds = Counter(op.kind for op in planned.operations)
        assert kinds == Counter(op.kind for op in function.compute)
        devices = Counter(op.device for op in planned.operations)
        record_property(f"devices of {shard.path} {function.name}", str(dict(devices)))
        assert devices.total() > devices[Device.NONE], "no operation has a device"
        if not has_neural_engine():
            assert devices[Device.ANE] == 0


@pytest.mark.fast_only("Core ML-static")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options["shapes"]))
def test_a_plan_through_coremltools_is_whole(
    core_ml: CoreMLHere, built: Built, options: dict[str, Shapes], record_property: Record
) -> None:
    artifact = built(**options)
    for shard in artifact.manifest.shards:
        require_whole(PlanningTools().plan(artifact, shard), artifact, shard, record_property)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options["shapes"]))
def test_a_plan_through_the_worker_is_whole(
    worker: CoreMLHere,
    program: WorkerProgram,
    built: Built,
    options: dict[str, Shapes],
    record_property: Record,
) -> None:
    if not worker.real:
        pytest.skip("needs Core ML: the worker's stand-in reads plans from files (tests/validate/residency)")
    artifact = built(**options)
    for shard in artifact.manifest.shards:
        require_whole(WorkerPlans(program).plan(artifact, shard), artifact, shard, record_property)
