"""Read Core ML's plan of a shard through coremltools, in this process, which Core ML may crash. macOS only.

Only two calls into coremltools 9 need Core ML, `compile` and `load_plan`; the rest runs anywhere. coremltools
plans without the hints that a model is loaded with. This project has not run any of it on a Mac yet.
"""

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from anespec.manifests.residency import (
    Device,
    FunctionPlan,
    PlannedOperation,
    ShardComputePlan,
    layers_by_name,
)
from anespec.manifests.schema import Manifest, Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime.backends.coreml.library import (
    NEURAL_ENGINE,
    CoreMLTools,
    coremltools,
)
from anespec.runtime.backends.portable.mil_package import read_model, root_model
from anespec.system.coreml_errors import error_sentence
from anespec.system.machine import machine_name
from anespec.validate.residency.shard_view import (
    FunctionView,
    ShardView,
    has_device,
    view_declared,
)

COREMLTOOLS = "coreml"
"""The backend named in the environment of such a plan."""

_DEVICES: Mapping[str, Device] = {
    NEURAL_ENGINE: Device.ANE,
    "MLGPUComputeDevice": Device.GPU,
    "MLCPUComputeDevice": Device.CPU,
}


class NamedValueType(Protocol):
    """MLModelStructureProgramNamedValueType. Its type is opaque, so shapes come from the package."""

    @property
    def name(self) -> str: ...


class StructureOperation(Protocol):
    """MLModelStructureProgramOperation."""

    @property
    def operator_name(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, Any]: ...
    @property
    def outputs(self) -> Sequence[NamedValueType]: ...
    @property
    def blocks(self) -> Sequence["StructureBlock"]: ...


class StructureBlock(Protocol):
    """MLModelStructureProgramBlock."""

    @property
    def operations(self) -> Sequence[StructureOperation]: ...


class DeviceUsage(Protocol):
    """MLComputePlanDeviceUsage."""

    @property
    def preferred_compute_device(self) -> object: ...
    @property
    def supported_compute_devices(self) -> Sequence[object]: ...


class Cost(Protocol):
    """MLComputePlanCost."""

    @property
    def weight(self) -> float: ...


class ComputePlan(Protocol):
    """MLComputePlan."""

    @property
    def model_structure(self) -> Any: ...

    def get_compute_device_usage_for_mlprogram_operation(
        self, operation: StructureOperation
    ) -> DeviceUsage | None: ...

    def get_estimated_cost_for_mlprogram_operation(self, operation: StructureOperation) -> Cost | None: ...


class PlanningTools(CoreMLTools):
    """A PlanMaker (see compute_plan) that uses coremltools 9."""

    def circumstances(self, artifact: Artifact) -> RunEnvironment:
        """See PlanMaker."""
        return RunEnvironment(
            backend=COREMLTOOLS,
            library_version=self.version(),
            machine=machine_name(),
            threads=1,
            artifact=artifact.fingerprint,
        )

    def plan(self, artifact: Artifact, shard: Shard) -> ShardComputePlan:
        """See PlanMaker."""
        return measure_shard(artifact.manifest, shard, artifact.shard_path(shard), self)

    def plan_compiled(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        """Return the plan of the default function of a compiled shard.

        A copy at another path would be specialised again, since the system's cache is keyed by path
        (coremltools#2549).
        """
        manifest = artifact.manifest
        function = manifest.functions_of(shard)[0]
        view = view_declared(manifest, shard, artifact.shard_path(shard))
        if (reason := other_default(view)) is not None:
            return refused(shard, reason)
        try:
            planned = one_function(read_plan(self.load_plan(compiled), view), function.name)
        except Exception as error:
            # Core ML raises RuntimeError, ValueError and plain Exception.
            return refused(shard, error_sentence(str(error)))
        return ShardComputePlan(shard=shard.path, sha256=shard.sha256, functions=(planned,))

    def load_plan(self, compiled: Path) -> ComputePlan:
        """Load the plan of a compiled model. Needs macOS."""
        ct = coremltools()
        plan: ComputePlan = ct.models.compute_plan.MLComputePlan.load_from_path(
            str(compiled), compute_units=ct.ComputeUnit.CPU_AND_NE
        )
        return plan


def measure_shard(manifest: Manifest, shard: Shard, package: Path, coreml: PlanningTools) -> ShardComputePlan:
    """Return the plan of one shard for each of its functions, compiled in a temporary folder.

    coremltools plans only the default function. So for another function a package is compiled that differs
    only in the name of its default function and shares the weight file.
    """
    view = view_declared(manifest, shard, package)
    if (reason := other_default(view)) is not None:
        return refused(shard, reason)
    planned = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, function in enumerate(manifest.package_functions(shard)):
            asked = package if number == 0 else folder / f"{number}.mlpackage"
            try:
                if number:
                    copy_with_default(package, function.name, asked)
                plan = coreml.load_plan(coreml.compile(asked, folder / f"{number}.mlmodelc"))
                planned.append(one_function(read_plan(plan, view), function.name))
            except Exception as error:
                # Core ML raises RuntimeError, ValueError and plain Exception.
                return refused(shard, error_sentence(str(error)))
    return ShardComputePlan(shard=shard.path, sha256=shard.sha256, functions=tuple(planned))


def refused(shard: Shard, sentence: str) -> ShardComputePlan:
    """Return a plan that consists of a refusal."""
    return ShardComputePlan(shard=shard.path, sha256=shard.sha256, refusal=sentence)


def one_function(plans: Sequence[FunctionPlan], name: str) -> FunctionPlan:
    """Return the plan of that function; raises ValueError if there is none."""
    for plan in plans:
        if plan.name == name:
            return plan
    raise ValueError(f"the compiled model has no function {name}")


def other_default(view: ShardView) -> str | None:
    """Return why a plan would be for another shape than the manifest's, or None.

    A range is planned at its default shape, which must be the manifest's.
    """
    defaults = (size for function in view.functions for f in function.features for size in f.varying_defaults)
    other = next((size for size in defaults if size != view.default_rows), None)
    if other is None:
        return None
    return f"its default shape is of T = {other}, not {view.default_rows} as its manifest says; convert again"


def copy_with_default(package: Path, function: str, destination: Path) -> None:
    """Copy a package with another default function; the copy shares the weight files."""
    model, _ = read_model(package)
    model.description.defaultFunctionName = function
    model_file = root_model(package)

    def share(source: str, target: str) -> None:
        if Path(source) != model_file:
            # Files of another file system or another user cannot be linked.
            with contextlib.suppress(OSError):
                os.link(source, target)
                return
        shutil.copy2(source, target)

    shutil.copytree(package, destination, copy_function=share)
    (destination / model_file.relative_to(package)).write_bytes(model.SerializeToString(deterministic=True))


def read_plan(plan: ComputePlan, view: ShardView) -> tuple[FunctionPlan, ...]:
    """Return the operations of every function, including nested blocks, without constants.

    `view` is of the compiled package and gives the shapes, which a plan lacks.

    Raises:
        ValueError: the compiled model is not an ML program.
    """
    program = plan.model_structure.program
    if program is None:
        raise ValueError("the compiled model is not an ML program")
    views = {function.name: function for function in view.functions}
    return tuple(
        _function_plan(plan, name, function.block, views.get(name))
        for name, function in program.functions.items()
    )


def _function_plan(
    plan: ComputePlan, name: str, block: StructureBlock, view: FunctionView | None
) -> FunctionPlan:
    operations = [op for op in _walk(block) if has_device(_kind(op))]
    names = [_name(op) for op in operations]
    planned = []
    for op, op_name, layer in zip(operations, names, layers_by_name(names), strict=True):
        usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
        cost = plan.get_estimated_cost_for_mlprogram_operation(op)
        is_known = cost is not None and math.isfinite(cost.weight)
        known = [view.types[output.name] for output in op.outputs if view and output.name in view.types]
        planned.append(
            PlannedOperation(
                kind=_kind(op),
                name=op_name,
                shapes=tuple(tensor.shape for tensor in known),
                device=_device(usage.preferred_compute_device) if usage else Device.NONE,
                supported=tuple(_device(d) for d in usage.supported_compute_devices) if usage else (),
                cost=cost.weight if cost and is_known else None,
                layer=layer,
            )
        )
    return FunctionPlan(name=name, rows=view.rows if view else None, operations=tuple(planned))


def _walk(block: StructureBlock) -> Iterator[StructureOperation]:
    for operation in block.operations:
        yield operation
        for nested in operation.blocks:
            yield from _walk(nested)


def _kind(operation: StructureOperation) -> str:
    """Return the kind without its opset: `ios18.conv` is a conv."""
    return operation.operator_name.rpartition(".")[2]


def _name(operation: StructureOperation) -> str:
    """Return the name of the first output; a write to a state has none and is named after the state."""
    if operation.outputs:
        return operation.outputs[0].name
    bindings = operation.inputs["input"].bindings if "input" in operation.inputs else ()
    return " ".join(binding.name for binding in bindings if binding.name)


def _device(device: object) -> Device:
    return _DEVICES.get(type(device).__name__, Device.NONE)
