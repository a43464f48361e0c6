"""The planned device of each operation of a shard, and the residency gate's verdict.

Plans have the same form whether rules predicted them, Core ML made them, or a recorded one is replayed. The
same code counts and judges all three.
"""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Literal, TypeVar

from pydantic import Field

from anespec.manifests.schema import Count, Index, Record
from anespec.manifests.verdicts import RunEnvironment, Status, Verdict, VerdictFile
from anespec.system.formatting import shape_text

MOST_NAMED = 20
"""The most operations that a verdict lists per shard; its totals count all of them."""


KeyT = TypeVar("KeyT")


class Device(StrEnum):
    """The planned device of an operation; `none` if the plan has no entry for it."""

    ANE = "ane"
    GPU = "gpu"
    CPU = "cpu"
    NONE = "none"


class Placement(StrEnum):
    """Where a whole shard runs: on one device, on several, refused, or without any operation."""

    ANE = "ane"
    GPU = "gpu"
    CPU = "cpu"
    MIXED = "mixed"
    REFUSED = "refused"
    EMPTY = "empty"


class PlanSource(StrEnum):
    """The source of a plan."""

    PREDICTED = "predicted"
    MEASURED = "measured"
    REPLAYED = "replayed"


class Severity(StrEnum):
    """The effect of a rule's finding on the predicted verdict."""

    FAIL = "fail"
    WARN = "warn"


class PlannedOperation(Record):
    """An operation that is not a constant. `shapes` has one shape per output; a None in it depends on T.

    `cost` is Core ML's estimate of the operation's fraction of the whole time, 0 to 1. `layer` is the layer
    to which the operation belongs, if its name says so. `rules` moved it to its device, in a prediction.
    """

    kind: str
    name: str
    shapes: tuple[tuple[int | None, ...], ...]
    device: Device
    supported: tuple[Device, ...] = ()
    cost: float | None = Field(default=None, ge=0)
    layer: Index | None = None
    rules: tuple[str, ...] = ()

    def __str__(self) -> str:
        shapes = " ".join(shape_text(shape) for shape in self.shapes)
        cost = f", estimated cost {self.cost:.3g}" if self.cost is not None else ""
        return f"{self.kind} {self.name} {shapes}".rstrip() + f" on {self.device}{cost}"


class FunctionPlan(Record):
    """The plan of a function: its operations in order, each followed by its nested ones.

    `rows` is the T of the plan, None if it is unknown because only the compiled shard was read.
    """

    name: str
    rows: Count | None = None
    operations: tuple[PlannedOperation, ...]


class ShardComputePlan(Record):
    """The plan of a shard, identified by its path and sha256 in the manifest.

    `refusal` says why, if there is no plan.
    """

    shard: str
    sha256: str
    functions: tuple[FunctionPlan, ...] = ()
    refusal: str | None = None

    @property
    def operations(self) -> tuple[PlannedOperation, ...]:
        """The operations of all functions."""
        return tuple(operation for function in self.functions for operation in function.operations)


class Plan(Record):
    """The plans of an artifact's shards for decoding passes of `block` rows; its JSON is a recorded plan."""

    schema_version: Literal[1] = 1
    source: PlanSource
    circumstances: RunEnvironment
    block: Count
    shards: tuple[ShardComputePlan, ...]


class DeviceTotals(Record):
    """The number of operations on each device."""

    ane: Index = 0
    gpu: Index = 0
    cpu: Index = 0
    none: Index = 0

    @classmethod
    def of(cls, operations: Iterable[PlannedOperation]) -> "DeviceTotals":
        """Count operations by device."""
        devices = [operation.device for operation in operations]
        return cls(**{device.value: devices.count(device) for device in Device})

    @property
    def total(self) -> int:
        """The number of all operations."""
        return self.ane + self.gpu + self.cpu + self.none

    @property
    def off_ane(self) -> int:
        """The number of operations that do not run on the Neural Engine."""
        return self.total - self.ane

    @property
    def placement(self) -> Placement:
        """The device of all operations, else `mixed`; operations without an entry in the plan are `mixed`."""
        if not self.total:
            return Placement.EMPTY
        for count, placement in (
            (self.ane, Placement.ANE),
            (self.gpu, Placement.GPU),
            (self.cpu, Placement.CPU),
        ):
            if count == self.total:
                return placement
        return Placement.MIXED


class KindTotals(Record):
    """The devices of one kind of operation."""

    kind: str
    devices: DeviceTotals


class LayerTotals(Record):
    """The devices of one layer's operations; None stands for operations outside all layers."""

    layer: int | None
    devices: DeviceTotals


class FunctionTotals(Record):
    """The devices of one function's operations, with the T of its plan."""

    name: str
    rows: Count | None
    devices: DeviceTotals


class ShardResidency(Record):
    """The summary of a plan for one shard.

    `off_ane` lists the costliest operations that are not on the Neural Engine, at most 20. `functions` is
    empty for a shard with a single function; all other fields count all functions.
    """

    shard: str
    placement: Placement
    compute: DeviceTotals
    conv: DeviceTotals
    kinds: tuple[KindTotals, ...]
    layers: tuple[LayerTotals, ...]
    off_ane: tuple[PlannedOperation, ...]
    functions: tuple[FunctionTotals, ...] = ()
    refusal: str | None = None

    @classmethod
    def of(cls, plan: ShardComputePlan) -> "ShardResidency":
        """Summarise the plan of a shard."""
        operations = plan.operations
        compute = DeviceTotals.of(operations)
        off_ane = [operation for operation in operations if operation.device is not Device.ANE]
        costliest = sorted(off_ane, key=lambda op: (-(op.cost or 0), op.kind != "conv"))
        return cls(
            shard=plan.shard,
            placement=compute.placement if plan.refusal is None else Placement.REFUSED,
            compute=compute,
            conv=DeviceTotals.of(op for op in operations if op.kind == "conv"),
            kinds=tuple(
                KindTotals(kind=kind, devices=DeviceTotals.of(op for op in operations if op.kind == kind))
                for kind in _distinct(operations, lambda op: op.kind)
            ),
            layers=tuple(
                LayerTotals(
                    layer=layer, devices=DeviceTotals.of(op for op in operations if op.layer == layer)
                )
                for layer in _distinct(operations, lambda op: op.layer)
            ),
            off_ane=tuple(costliest[:MOST_NAMED]),
            functions=tuple(
                FunctionTotals(
                    name=function.name, rows=function.rows, devices=DeviceTotals.of(function.operations)
                )
                for function in (plan.functions if len(plan.functions) > 1 else ())
            ),
            refusal=plan.refusal,
        )


class RuleFinding(Record):
    """A rule's finding in a shard, or in the whole artifact if `shard` is None."""

    rule: str
    severity: Severity
    shard: str | None
    subject: str
    detail: str
    mend: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.detail} ({self.rule}); {self.mend}"


class ResidencyVerdict(Verdict):
    """The result of a run of the residency gate. A single operation off the Neural Engine fails it.

    `findings` are those of the rules. If the plan was not predicted, they explain it and do not decide.
    """

    source: PlanSource
    block: Count
    shards: tuple[ShardResidency, ...]
    findings: tuple[RuleFinding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all operations of all shards are on the Neural Engine."""
        return bool(self.shards) and not self.off_ane

    @property
    def standing(self) -> Status:
        """The status for reports; that of a prediction is `reported`."""
        if self.source is PlanSource.PREDICTED:
            return Status.REPORTED
        return Status.PASS if self.passed else Status.FAIL

    @property
    def off_ane(self) -> tuple[ShardResidency, ...]:
        """The shards that are not completely on the Neural Engine."""
        return tuple(shard for shard in self.shards if shard.placement is not Placement.ANE)


class ResidencyFile(VerdictFile[ResidencyVerdict]):
    """The file gates/residency.json. A replayed plan does not replace a measured one."""

    gate = "residency"

    def with_verdict(self, verdict: ResidencyVerdict) -> "ResidencyFile":
        """Return the file with `verdict` added, unless that is replayed and there is a measured one."""
        known = self.find(verdict.circumstances)
        if known and known.source is PlanSource.MEASURED and verdict.source is PlanSource.REPLAYED:
            return self
        return super().with_verdict(verdict)


_LAYER_NAME = re.compile(r"^layer_(\d+)_")


def layers_by_name(names: Iterable[str]) -> list[int | None]:
    """Return the layer of every operation, from their names in order.

    An operation without a layer in its name belongs to the layer of the next name that has one: for example,
    `layer_3_attended` is the last operation of attention in layer 3. The operations at the end, the last of
    which has the output's name, belong to the last layer.
    """
    own = [int(found[1]) if (found := _LAYER_NAME.match(name)) else None for name in names]
    following = next((layer for layer in reversed(own) if layer is not None), None)
    layers: list[int | None] = []
    for layer in reversed(own):
        following = following if layer is None else layer
        layers.append(following)
    return layers[::-1]


def _distinct(operations: Iterable[PlannedOperation], key: Callable[[PlannedOperation], KeyT]) -> list[KeyT]:
    return list(dict.fromkeys(key(operation) for operation in operations))
