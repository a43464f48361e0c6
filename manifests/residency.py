"""The planned device of each operation of a shard, and the residency gate's verdict.

A plan has one form whether rules predicted it, Core ML made it, or a recorded one is replayed; the same code
counts and judges all three.
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
"""Operations that a verdict names per shard; its totals count all."""


KeyT = TypeVar("KeyT")


class Device(StrEnum):
    """The device of an operation; `none` if a plan has no entry for it."""

    ANE = "ane"
    GPU = "gpu"
    CPU = "cpu"
    NONE = "none"


class Placement(StrEnum):
    """A whole shard: on one device, on several, not accepted at all, or without any operation."""

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
    """One operation that is not a constant. A None in `shapes`, one per output, follows T.

    `cost` is Core ML's estimate of the operation's share of the whole, 0 to 1. `layer` is the layer
    that the operation belongs to, where names tell. `rules` are those that moved it, in a prediction.
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
    """One function of a shard, for a pass of `rows` rows: its operations in order, nested ones after theirs.

    `rows` is None where what made the plan knew nothing but the compiled shard.
    """

    name: str
    rows: Count | None = None
    operations: tuple[PlannedOperation, ...]


class ShardComputePlan(Record):
    """One shard, by its path and sha256 in the manifest. `refusal` is a sentence where there is no plan."""

    shard: str
    sha256: str
    functions: tuple[FunctionPlan, ...] = ()
    refusal: str | None = None

    @property
    def operations(self) -> tuple[PlannedOperation, ...]:
        """The operations of every function."""
        return tuple(operation for function in self.functions for operation in function.operations)


class Plan(Record):
    """An artifact's shards at the `block` rows that a decoding pass runs. A recorded plan is this as JSON."""

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
        """All of them."""
        return self.ane + self.gpu + self.cpu + self.none

    @property
    def off_ane(self) -> int:
        """Those that do not run on the Neural Engine."""
        return self.total - self.ane

    @property
    def placement(self) -> Placement:
        """The one device that has all, or else mixed; an operation that a plan says nothing of is mixed."""
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
    """One kind of operation."""

    kind: str
    devices: DeviceTotals


class LayerTotals(Record):
    """One layer; None for what belongs to no layer."""

    layer: int | None
    devices: DeviceTotals


class FunctionTotals(Record):
    """One function, at a number of rows."""

    name: str
    rows: Count | None
    devices: DeviceTotals


class ShardResidency(Record):
    """The summary of a plan for one shard.

    `off_ane` names the costliest operations, at most 20 of them.

    `functions` are those of a shard that has several; everything else counts all of them.
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
        """Count one shard's plan."""
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
    """A rule's finding in one shard, or in the artifact if `shard` is None."""

    rule: str
    severity: Severity
    shard: str | None
    subject: str
    detail: str
    mend: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.detail} ({self.rule}); {self.mend}"


class ResidencyVerdict(Verdict):
    """One run of the residency gate. Strict: one operation off the Neural Engine fails it.

    `findings` are the rules' own; where the plan was not predicted they explain, and decide nothing.
    """

    source: PlanSource
    block: Count
    shards: tuple[ShardResidency, ...]
    findings: tuple[RuleFinding, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every shard's every operation is on the Neural Engine."""
        return bool(self.shards) and not self.off_ane

    @property
    def standing(self) -> Status:
        """The outcome as people read it; a prediction is a report."""
        if self.source is PlanSource.PREDICTED:
            return Status.REPORTED
        return Status.PASS if self.passed else Status.FAIL

    @property
    def off_ane(self) -> tuple[ShardResidency, ...]:
        """The shards that are not on the Neural Engine altogether."""
        return tuple(shard for shard in self.shards if shard.placement is not Placement.ANE)


class ResidencyFile(VerdictFile[ResidencyVerdict]):
    """gates/residency.json. A replayed plan does not take the place of a measured one."""

    gate = "residency"

    def with_verdict(self, verdict: ResidencyVerdict) -> "ResidencyFile":
        """This file with `verdict`, unless it replays what was measured."""
        known = self.find(verdict.circumstances)
        if known and known.source is PlanSource.MEASURED and verdict.source is PlanSource.REPLAYED:
            return self
        return super().with_verdict(verdict)


_LAYER_NAME = re.compile(r"^layer_(\d+)_")


def layers_by_name(names: Iterable[str]) -> list[int | None]:
    """The layer of every operation, given their names in order.

    An operation without a layer in its name works towards the next one that has: `layer_3_attended` ends
    what belongs to attention in layer 3. What comes last ends the last layer, and has the output's name.
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
