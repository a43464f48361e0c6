"""Compute plans made of coremltools' own classes, for a machine without Core ML.

What Core ML would answer stands behind the proxy that MLComputePlan asks, so its real methods and the real
dataclasses of a model's structure are what the code under test meets.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from anespec.convert.graph.builder import ct
from anespec.manifests.residency import Device
from anespec.runtime.backends.portable.mil_package import Operation, read_package
from anespec.validate.residency.coremltools_plan import ComputePlan, PlanningTools
from anespec.validate.residency.shard_view import ShardView, has_device, view_package

_plan = ct.models.compute_plan
_device = ct.models.compute_device

_CLASSES = {
    Device.ANE: _device.MLNeuralEngineComputeDevice,
    Device.GPU: _device.MLGPUComputeDevice,
    Device.CPU: _device.MLCPUComputeDevice,
}

Placing = Callable[[str, str], Device]
"""Takes an operation's kind and name."""


def everything_on(device: Device) -> Placing:
    return lambda kind, name: device


def all_but(device: Device, *names: str) -> Placing:
    """On the Neural Engine, except these operations."""
    return lambda kind, name: device if name in names else Device.ANE


def device(kind: Device) -> Any:
    """A device of coremltools' class, whose constructor wants Core ML."""
    return object.__new__(_CLASSES[kind])


def named(*names: str) -> list[Any]:
    opaque = _plan.MLModelStructureProgramValueType()
    return [_plan.MLModelStructureProgramNamedValueType(name, opaque) for name in names]


def structure_op(
    kind: str, outputs: Iterable[str], inputs: Mapping[str, Iterable[str]] = {}, blocks: Iterable[Any] = ()
) -> Any:
    """An operation as a compiled model shows it, `ios18.` before its kind."""
    arguments = {
        key: _plan.MLModelStructureProgramArgument(
            [_plan.MLModelStructureProgramBinding(name, None) for name in names]
        )
        for key, names in inputs.items()
    }
    name = kind if kind == "const" else f"ios18.{kind}"
    return _plan.MLModelStructureProgramOperation(arguments, name, named(*outputs), list(blocks), None)


def structure_block(operations: Iterable[Any]) -> Any:
    return _plan.MLModelStructureProgramBlock([], list(operations), [])


class _Proxy:
    """What Core ML would answer."""

    def __init__(
        self, functions: Mapping[str, Any], placing: Placing, cost: float | None, only: str | None
    ) -> None:
        program = _plan.MLModelStructureProgram(
            {name: _plan.MLModelStructureProgramFunction([], block) for name, block in functions.items()}
        )
        self.model_structure = _plan.MLModelStructure(None, program, None)
        self.placing = placing
        self.cost = cost
        self.silent = {
            id(op) for name, block in functions.items() if only not in (None, name) for op in block.operations
        }

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        kind = operation.operator_name.rpartition(".")[2]
        if not has_device(kind) or id(operation) in self.silent:
            return None
        name = operation.outputs[0].name if operation.outputs else operation.inputs["input"].bindings[0].name
        where = self.placing(kind, name)
        if where is Device.NONE:
            return None
        return _plan.MLComputePlanDeviceUsage(device(where), [device(Device.CPU), device(where)])

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        return None if self.cost is None else _plan.MLComputePlanCost(self.cost)


def plan_of(
    functions: Mapping[str, Any], placing: Placing, cost: float | None = 0.01, only: str | None = None
) -> ComputePlan:
    """An MLComputePlan over these blocks; it says nothing of others than those of the function `only`."""
    plan = object.__new__(_plan.MLComputePlan)
    plan.__proxy__ = _Proxy(functions, placing, cost, only)
    found: ComputePlan = plan
    return found


def blocks_of(shard: ShardView) -> dict[str, Any]:
    """A package's functions as a compiled model shows them."""
    return {view.name: structure_block(map(_structure, view.function.operations)) for view in shard.functions}


def _structure(op: Operation) -> Any:
    nested = [structure_block(map(_structure, block)) for block in op.blocks]
    return structure_op(op.kind, op.outputs, op.inputs, nested)


class StandInCoreML(PlanningTools):
    """Compiling keeps the package, and the plan of its default function is made from it by `placing`."""

    def __init__(self, placing: Placing, refuse: Mapping[str, str] = {}) -> None:
        self.placing = placing
        self.refuse = refuse
        self.compiled: list[Path] = []

    def compile(self, package: Path, destination: Path) -> Path:
        self.compiled.append(package)
        inputs = view_package(package, "", "", 1).functions[0].inputs
        for name, message in self.refuse.items():
            if name in {value.name for value in inputs}:
                raise RuntimeError(message)
        return package

    def load_plan(self, compiled: Path) -> ComputePlan:
        functions = blocks_of(view_package(compiled, "", "", 1))
        return plan_of(functions, self.placing, only=read_package(compiled).default_function)
