"""Describe a topology plan to the user: each shard with the evidence on its size, and warnings with fixes."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.planning.shard_limits import (
    FUNCTIONS_EVIDENCE,
    PROCESS_BYTES,
    PROCESS_EVIDENCE,
    SHARD_LIMITS,
    Outlook,
    SizeRange,
)
from anespec.convert.planning.topology import Origin, TopologyPlan, describe_kinds
from anespec.manifests.schema import Shapes, Target
from anespec.system.formatting import bytes_text, listed

# The first use of an artifact on a Neural Engine depends on its shapes.

RANGE_EVIDENCE = "B: ane-book Exp. 26"


def first_use(target: Target, shapes: Shapes, widths: Sequence[int]) -> str | None:
    """Return a sentence on the first use; None if the target has no Neural Engine."""
    if target is Target.CPU:
        return None
    if shapes is Shapes.RANGE:
        return (
            f"First use: Core ML may prepare a range anew in every process, for each of "
            f"{listed([str(width) for width in widths])} rows: 112 s for 1 and 133 s for 4, measured once, "
            f"by others ({RANGE_EVIDENCE}). `anespec selftest` measures it here, and whether --shapes static "
            "or functions start faster."
        )
    return (
        "First use: Core ML prepares each function. No measurement is known for fixed shapes; "
        "`anespec selftest` measures it here."
    )


@dataclass(frozen=True)
class ShardRow:
    """A row of the report: a shard's layers or tokens, its stored bytes, and the evidence on that size."""

    part: range
    kinds: str
    bytes: int
    size_range: SizeRange


@dataclass(frozen=True)
class PlanReport:
    """The shards of a plan, its reasons and its warnings.

    `total_bytes` counts weights, which the functions of a shard share. `process_bytes` is about the most that
    one process can hold of them on the Neural Engine, None if there is no such limit.
    """

    layer_shards: tuple[ShardRow, ...]
    head_shards: tuple[ShardRow, ...]
    total_bytes: int
    process_bytes: int | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def explain(plan: TopologyPlan) -> PlanReport:
    """Return the report on `plan`: its shards, reasons and warnings."""
    limits, topology = SHARD_LIMITS[plan.target], plan.topology
    layer_rows = tuple(
        ShardRow(part, describe_kinds(plan.stack.kinds[part.start : part.stop]), size, limits.range_of(size))
        for part, size in zip(topology.layer_ranges, plan.layer_shard_bytes, strict=True)
    )
    head_rows = tuple(
        ShardRow(tokens, "head", size, limits.range_of(size))
        for tokens, size in zip(topology.heads, plan.head_shard_bytes, strict=True)
    )
    on_engine = plan.target is not Target.CPU
    warnings = [
        *_preset_warnings(plan),
        *_layer_warnings(plan, layer_rows),
        *(_head_warnings(plan, head_rows) if on_engine else ()),
        *(_process_warnings(plan) if on_engine else ()),
    ]
    return PlanReport(
        layer_rows,
        head_rows,
        plan.stack.total_bytes,
        PROCESS_BYTES if on_engine else None,
        plan.reasons,
        tuple(warnings),
    )


def _preset_warnings(plan: TopologyPlan) -> list[str]:
    choice = plan.preset
    if plan.origin is not Origin.PRESET or choice is None or not choice.differences:
        return []
    return [
        f"The preset {choice.preset.name} was not measured for this conversion "
        f"({'; '.join(choice.differences)}); leave --preset out to plan from the bytes."
    ]


def _layer_warnings(plan: TopologyPlan, rows: tuple[ShardRow, ...]) -> list[str]:
    """Return a sentence for each size range without a good outlook: its shards, the finding, the fix."""
    warnings: list[str] = []
    for known in SHARD_LIMITS[plan.target].ranges:
        inside = [row for row in rows if row.size_range == known]
        # A preset was measured at exactly these sizes, which is better evidence than a range.
        measured = plan.origin is Origin.PRESET and plan.preset is not None and not plan.preset.differences
        if known.outlook is Outlook.GOOD or not inside or (measured and known.outlook is Outlook.UNSURE):
            continue
        names = ", ".join(_layers_text(row.part) for row in inside[:4]) + (" …" if len(inside) > 4 else "")
        size = max(row.bytes for row in inside)
        warnings.append(
            f"Layers {names} (up to {bytes_text(size)} in a shard): {known}; {_layer_fix(plan, inside)}."
        )
    return warnings


def _layer_fix(plan: TopologyPlan, rows: list[ShardRow]) -> str:
    limits = SHARD_LIMITS[plan.target]
    if rows[0].bytes < limits.smallest:
        if sum(plan.stack.layer_bytes) < limits.smallest:
            return "the whole model is that small, so --target cpu is better"
        return "merge them with a neighbour by --topology, or leave the topology to the planner"
    if any(len(row.part) == 1 for row in rows):
        return "a single layer is that large, so choose a smaller weight format with --weights"
    limit = bytes_text(limits.planned_bytes)
    return (
        f"give --topology with fewer layers in a shard, or leave the topology to the planner (up to {limit})"
    )


def _head_warnings(plan: TopologyPlan, rows: tuple[ShardRow, ...]) -> list[str]:
    limits = SHARD_LIMITS[plan.target]
    smallest = min(row.bytes for row in rows)
    if smallest >= limits.smallest:
        return []
    fix = (
        "give fewer --head-shards"
        if len(rows) > 1
        else "there is nothing to merge it with, so the head may run on the CPU"
    )
    return [f"Head shards of {bytes_text(smallest)}: {limits.range_of(smallest)}; {fix}."]


def _process_warnings(plan: TopologyPlan) -> list[str]:
    held = plan.stack.total_bytes
    if held <= PROCESS_BYTES:
        return []
    fix = (
        "a phone app is one process, so choose a smaller weight format with --weights or a smaller model"
        if plan.target is Target.IPHONE
        else "run the shards in several processes, or choose a smaller weight format with --weights"
    )
    return [
        f"The shards hold {bytes_text(held)} of weights{_several(plan)}, and one process holds about "
        f"{bytes_text(PROCESS_BYTES)} on the Neural Engine ({PROCESS_EVIDENCE}); {fix}."
    ]


def _several(plan: TopologyPlan) -> str:
    if plan.functions == 1:
        return ""
    return f", which {plan.functions} functions share (one project saw a copy for each: {FUNCTIONS_EVIDENCE})"


def _layers_text(part: range) -> str:
    return f"{part.start}-{part.stop - 1}" if len(part) > 1 else str(part.start)
