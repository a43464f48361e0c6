"""Lay out where operations run, by kind, by layer and by shard, and the findings of the rules."""

from collections.abc import Iterable
from dataclasses import dataclass

from anespec.manifests.residency import (
    Device,
    DeviceTotals,
    ResidencyVerdict,
    RuleFinding,
    Severity,
    ShardResidency,
)
from anespec.system.formatting import counted
from anespec.validate.page.scales import BarSegment, Tick, stacked
from anespec.validate.page.shards import stem

DEVICE_NAMES = {Device.ANE: "ANE", Device.GPU: "GPU", Device.CPU: "CPU", Device.NONE: "not reported"}
NO_LAYER = "no layer"
MAX_LABELS = 10
"""The most columns that each have room for a label."""


@dataclass(frozen=True)
class DeviceBar:
    """The operations of one kind, layer or shard, by device."""

    label: str
    total: int
    parts: tuple[BarSegment, ...]
    words: str


@dataclass(frozen=True)
class LayersPicture:
    """A column per layer, `width` percent wide; only some have labels."""

    columns: tuple[DeviceBar, ...]
    width: float
    ticks: tuple[Tick, ...]
    words: str


@dataclass(frozen=True)
class FindingRow:
    """The findings of one rule that share a fix (`mend`)."""

    rule: str
    fails: bool
    shards: str
    detail: str
    others: int
    mend: str


@dataclass(frozen=True)
class ResidencyView:
    """One verdict as bars; `alike` is a sentence used instead if all bars have one colour."""

    verdict: ResidencyVerdict
    shards: tuple[DeviceBar, ...]
    kinds: tuple[DeviceBar, ...]
    layers: LayersPicture
    alike: str
    findings: tuple[FindingRow, ...]
    on_ane: int
    operations: int


def view_residency(verdict: ResidencyVerdict) -> ResidencyView:
    """Add up the operations of all shards by kind and by layer."""
    kinds: dict[str, DeviceTotals] = {}
    layers: dict[int | None, DeviceTotals] = {}
    for shard in verdict.shards:
        for kind in shard.kinds:
            kinds[kind.kind] = _sum(kinds.get(kind.kind), kind.devices)
        for layer in shard.layers:
            layers[layer.layer] = _sum(layers.get(layer.layer), layer.devices)
    numbered = sorted((layer, totals) for layer, totals in layers.items() if layer is not None)
    bars = [_bar(f"layer {layer}", totals) for layer, totals in numbered]
    bars += [_bar(NO_LAYER, layers[None])] if None in layers else []
    return ResidencyView(
        verdict=verdict,
        shards=tuple(bar for shard in verdict.shards for bar in _shard_bars(shard)),
        kinds=tuple(_bar(kind, totals) for kind, totals in sorted(kinds.items(), key=_worst_first)),
        layers=_picture(bars),
        alike=_alike(verdict),
        findings=_findings(verdict.findings),
        on_ane=sum(shard.compute.ane for shard in verdict.shards),
        operations=sum(shard.compute.total for shard in verdict.shards),
    )


def _shard_bars(shard: ShardResidency) -> list[DeviceBar]:
    """Return a bar for the shard, or one for each of its functions."""
    name = stem(shard.shard)
    if shard.refusal or not shard.functions:
        return [_bar(f"{name}: {shard.refusal}" if shard.refusal else name, shard.compute)]
    return [_bar(f"{name}, {function.name}", function.devices) for function in shard.functions]


def _bar(label: str, totals: DeviceTotals) -> DeviceBar:
    counts = [(getattr(totals, device.value), device) for device in Device]
    words = ", ".join(f"{count} {DEVICE_NAMES[device]}" for count, device in counts if count)
    parts = stacked(
        [
            (float(count), device.value, f"{label}: {count} of {totals.total} on {DEVICE_NAMES[device]}", "")
            for count, device in counts
        ]
    )
    return DeviceBar(label, totals.total, parts, words or "no operations")


def _alike(verdict: ResidencyVerdict) -> str:
    """Return a sentence if all operations are on one device and no shard is refused, else ""."""
    counts = {device: sum(getattr(s.compute, device.value) for s in verdict.shards) for device in Device}
    used = [device for device, count in counts.items() if count]
    if len(used) != 1 or any(shard.refusal for shard in verdict.shards):
        return ""
    where = {
        Device.ANE: "on the Neural Engine",
        Device.GPU: "on the GPU",
        Device.CPU: "on the CPU",
        Device.NONE: "on a device that is not reported",
    }[used[0]]
    shards, operations = counted(len(verdict.shards), "shard"), counted(counts[used[0]], "operation")
    return f"{operations} in {shards}: every one {where}."


def _picture(bars: list[DeviceBar]) -> LayersPicture:
    width, step = 100 / max(1, len(bars)), 1 + len(bars) // MAX_LABELS
    ticks = [
        Tick(round((number + 0.5) * width, 3), bar.label.removeprefix("layer "))
        for number, bar in enumerate(bars)
        if number % step == 0 and bar.label != NO_LAYER
    ]
    layers = [bar for bar in bars if bar.label != NO_LAYER]
    off = sum(any(part.look != Device.ANE for part in bar.parts) for bar in layers)
    words = f"{off} of {len(layers)} layers have operations off the Neural Engine"
    return LayersPicture(tuple(bars), round(width, 3), tuple(ticks), words)


def _findings(findings: Iterable[RuleFinding]) -> tuple[FindingRow, ...]:
    groups: dict[tuple[str, str], list[RuleFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.mend), []).append(finding)
    rows = [
        FindingRow(
            rule=rule,
            fails=any(finding.severity is Severity.FAIL for finding in group),
            shards=", ".join(dict.fromkeys(stem(f.shard) for f in group if f.shard)) or "the artifact",
            detail=f"{group[0].subject}: {group[0].detail}",
            others=len(group) - 1,
            mend=mend,
        )
        for (rule, mend), group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: not row.fails))


def _sum(known: DeviceTotals | None, more: DeviceTotals) -> DeviceTotals:
    if known is None:
        return more
    return DeviceTotals(
        ane=known.ane + more.ane,
        gpu=known.gpu + more.gpu,
        cpu=known.cpu + more.cpu,
        none=known.none + more.none,
    )


def _worst_first(entry: tuple[str, DeviceTotals]) -> tuple[int, int, str]:
    return -entry[1].off_ane, -entry[1].total, entry[0]
