"""Core ML's own plan: where it would run every operation, asked at the shape that is run. macOS only.

Everything that needs Core ML is behind the protocol CoreML, three calls into coremltools 9; the rest
runs anywhere. None of it was run on a Mac by this project yet.
"""

import contextlib
import io
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from anespec.manifests.coreml_errors import error_sentence
from anespec.manifests.machine import machine_name
from anespec.manifests.residency import (
    Device,
    FunctionPlan,
    Plan,
    PlannedOperation,
    PlanSource,
    ShardComputePlan,
    layers_by_name,
)
from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Circumstances
from anespec.runtime.backends.coreml.library import has_neural_engine, library_version
from anespec.validate.progress import StepReport
from anespec.validate.residency.shard_view import (
    Feature,
    FunctionView,
    ShardView,
    has_device,
    view_package,
)

_DEVICES: Mapping[str, Device] = {
    "MLNeuralEngineComputeDevice": Device.ANE,
    "MLGPUComputeDevice": Device.GPU,
    "MLCPUComputeDevice": Device.CPU,
}
MAIN = "main"


class NamedValueType(Protocol):
    """MLModelStructureProgramNamedValueType; its type is opaque, so shapes come from the package."""

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


class CoreML(Protocol):
    """What is asked of coremltools and of Core ML behind it; a call may raise anything."""

    def materialise(self, package: Path, shapes: Mapping[str, tuple[int, ...]], destination: Path) -> None:
        """Write the package with its function `main` at these input shapes to `destination`."""

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package; returns the .mlmodelc."""

    def load_plan(self, compiled: Path) -> ComputePlan:
        """The plan for CPU and Neural Engine. Only a compiled model: given a package, Core ML aborts."""


class CoreMLTools:
    """CoreML by coremltools 9."""

    def materialise(self, package: Path, shapes: Mapping[str, tuple[int, ...]], destination: Path) -> None:
        """Works on Linux too. Opening a package writes its Manifest.json, so callers pass a copy."""
        from anespec.convert.graph.builder import ct

        with contextlib.redirect_stderr(io.StringIO()):
            model = ct.models.MLModel(str(package), skip_model_load=True)
            ct.utils.materialize_dynamic_shape_mlmodel(model, {MAIN: dict(shapes)}, str(destination))

    def compile(self, package: Path, destination: Path) -> Path:
        """Needs macOS."""
        from anespec.convert.graph.builder import ct

        return Path(ct.utils.compile_model(str(package), str(destination)))

    def load_plan(self, compiled: Path) -> ComputePlan:
        """Needs macOS."""
        from anespec.convert.graph.builder import ct

        plan: ComputePlan = ct.models.compute_plan.MLComputePlan.load_from_path(
            str(compiled), compute_units=ct.ComputeUnit.CPU_AND_NE
        )
        return plan


def neural_engine() -> CoreML | None:
    """The way to Core ML where this machine has a Neural Engine, else None."""
    return CoreMLTools() if has_neural_engine() else None


def plan_circumstances(artifact: Artifact) -> Circumstances:
    """Where a plan that Core ML makes of an artifact here holds."""
    return Circumstances(
        backend="coreml",
        library_version=library_version(),
        machine=machine_name(),
        threads=1,
        artifact=artifact.fingerprint,
    )


def measure_plan(artifact: Artifact, coreml: CoreML, progress: StepReport) -> Plan:
    """Ask Core ML for the plan of every shard; one that it refuses is kept as its refusal.

    Raises:
        ArtifactError: a shard is missing or damaged.
    """
    manifest = artifact.manifest
    shards = []
    for shard in manifest.shards:
        progress(f"compiling {shard.path}")
        shards.append(measure_shard(shard, artifact.shard_path(shard), manifest.block, coreml))
    return Plan(
        source=PlanSource.MEASURED,
        circumstances=plan_circumstances(artifact),
        block=manifest.block,
        shards=tuple(shards),
    )


def measure_shard(shard: Shard, package: Path, block: int, coreml: CoreML) -> ShardComputePlan:
    """The plan of one shard at T = block, made in a temporary folder; the package is left alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied = linked_copy(package, folder / "copy.mlpackage")
        shapes = run_shapes(view_package(package, shard.path, shard.sha256, block), block)
        fixed = folder / "fixed.mlpackage"
        try:
            if shapes:
                coreml.materialise(copied, shapes, fixed)
            else:
                fixed = copied
            plan = coreml.load_plan(coreml.compile(fixed, folder / "compiled.mlmodelc"))
        except Exception as error:
            # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
            return ShardComputePlan(shard=shard.path, sha256=shard.sha256, refusal=error_sentence(str(error)))
        functions = read_plan(plan, view_package(fixed, shard.path, shard.sha256, block))
        return ShardComputePlan(shard=shard.path, sha256=shard.sha256, functions=functions)


def linked_copy(package: Path, destination: Path) -> Path:
    """A package whose Manifest.json may be written, sharing the other files with the original.

    The bytes would be the same, but an artifact may lie where nothing can be written.
    """

    def share(source: str, target: str) -> None:
        if Path(source).name != "Manifest.json":
            # Another file system's, or another user's, files cannot be linked.
            with contextlib.suppress(OSError):
                os.link(source, target)
                return
        shutil.copy2(source, target)

    return shutil.copytree(package, destination, copy_function=share)


def run_shapes(view: ShardView, block: int) -> dict[str, tuple[int, ...]]:
    """The shapes of every input of `main` with T = block; empty where no input's shape varies."""
    features = [
        feature for function in view.functions if function.name == MAIN for feature in function.features
    ]
    if not any(feature.varying_defaults for feature in features):
        return {}
    return {feature.name: _at(feature, block) for feature in features}


def _at(feature: Feature, block: int) -> tuple[int, ...]:
    if not feature.bounds:
        return feature.default
    sizes = zip(feature.default, feature.bounds, strict=True)
    return tuple(size if low == high else block for size, (low, high) in sizes)


def read_plan(plan: ComputePlan, view: ShardView) -> tuple[FunctionPlan, ...]:
    """Every operation of every function, nested blocks too, constants left out.

    `view` is of the package that was compiled; shapes come from there, since a plan has none.

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
    return FunctionPlan(name=name, operations=tuple(planned))


def _walk(block: StructureBlock) -> Iterator[StructureOperation]:
    for operation in block.operations:
        yield operation
        for nested in operation.blocks:
            yield from _walk(nested)


def _kind(operation: StructureOperation) -> str:
    """`ios18.conv` is a conv."""
    return operation.operator_name.rpartition(".")[2]


def _name(operation: StructureOperation) -> str:
    """The first output; what writes a state has none and is named after the state."""
    if operation.outputs:
        return operation.outputs[0].name
    bindings = operation.inputs["input"].bindings if "input" in operation.inputs else ()
    return " ".join(binding.name for binding in bindings if binding.name)


def _device(device: object) -> Device:
    return _DEVICES.get(type(device).__name__, Device.NONE)
