"""Define a step: its question, its trials, how a process runs one, and how the results are judged."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anespec.manifests.residency import Device as PlanDevice
from anespec.manifests.residency import DeviceTotals, Placement, ShardComputePlan
from anespec.system.formatting import counted, duration_text
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, Units
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.patience import END_COMMAND
from anespec.validate.selftest.records import (
    Comparison,
    Measured,
    Outcome,
    PassTime,
    Trial,
    TrialRecord,
)

FALLBACK_MIN_RATIO, FALLBACK_MAX_RATIO = 0.8, 1.25
"""A pass on the device whose time divided by the processor's is between these seems to have run on the
processor. One that takes longer still ran elsewhere, slowly. No source: chosen here."""

MIN_PASS_MS = 0.5
"""The milliseconds of a pass on the processor below which the time is mostly that of copying tensors."""


@dataclass(frozen=True)
class Step:
    """One of the self-test's steps; `id` is a value of --only."""

    id: str
    title: str
    asks: str
    trials: Callable[[Scale, DeviceFacts], tuple[Trial, ...]]
    run: Callable[[Trial, Bench], Measured]
    judge: Callable[[Sequence[TrialRecord], DeviceFacts], list[Finding]]


def placement(plan: ShardComputePlan) -> Placement:
    """Return where a shard as a whole runs."""
    return Placement.REFUSED if plan.refusal is not None else DeviceTotals.of(plan.operations).placement


def off_engine(plan: ShardComputePlan) -> str:
    """Return how many operations of a plan are off the Neural Engine, and their kinds."""
    if plan.refusal is not None:
        return plan.refusal
    off = [op for op in plan.operations if op.device is not PlanDevice.ANE]
    kinds = ", ".join(sorted({op.kind for op in off}))
    return f"{len(off)} of {len(plan.operations)} operations are off the Neural Engine ({kinds})"


def time_of(times: Iterable[PassTime], units: Units, rows: int | None = None) -> PassTime | None:
    """Return the time on those units, for `rows` rows or for the first that were timed."""
    return next((t for t in times if t.units is units and rows in (None, t.rows)), None)


LARGEST_ERROR = 0.05
"""The largest error of a sound comparison of a few random layers with torch."""


def falls_back(record: TrialRecord, facts: DeviceFacts, rows: int | None = None) -> bool:
    """Return whether the times show that the device's passes ran on the processor."""
    device = time_of(record.measured.times, Units.DEVICE, rows)
    cpu = time_of(record.measured.times, Units.CPU, rows)
    if not facts.engine or device is None or cpu is None or cpu.median_ms < MIN_PASS_MS:
        return False
    return FALLBACK_MIN_RATIO * cpu.median_ms <= device.median_ms <= FALLBACK_MAX_RATIO * cpu.median_ms


def numbers_right(record: TrialRecord) -> bool:
    """Return whether every comparison is within the error of a healthy shard of its format."""
    return all(comparison_right(c, record.trial) for c in record.measured.comparisons)


def comparison_right(found: Comparison, trial: Trial) -> bool:
    """Return whether one comparison is within that error."""
    limit = LARGEST_ERROR
    return not found.not_finite and found.error <= limit and found.cosine >= 1 - limit**2


def sound(record: TrialRecord, facts: DeviceFacts) -> bool:
    """Return whether a trial ran, on the right device, with the right numbers, and with all checks passed."""
    measured = record.measured
    resident = measured.planned is None or placement(measured.planned) is Placement.ANE
    checks = all(check.held or check.severity is not Level.FAIL for check in measured.checks)
    return record.done and resident and checks and numbers_right(record) and not falls_back(record, facts)


def broken(record: TrialRecord) -> Finding | None:
    """Return the finding of a trial that did not run to its end; None if it did."""
    if record.done:
        return None
    failure, subject = record.failure, record.trial.name
    text = failure.text if failure is not None else ""
    if record.outcome in (Outcome.NOT_HERE, Outcome.NO_ROOM):
        return Finding(subject=subject, level=Level.NOT_HERE, text=f"{record.outcome}: {text}")
    stage = failure.stage if failure is not None else "starting"
    meaning = failure.meaning if failure is not None else None
    code = f" ({failure.code})" if failure is not None and failure.code else ""
    said = {
        Outcome.ERROR: f"failed while {stage}{code}: {meaning or text}",
        Outcome.KILLED: f"the process was killed while {stage} ({text})",
        Outcome.HUNG: f"hung while {stage} ({text}, and no compiler was working)",
        Outcome.LOST: f"the machine or the self-test ended while {stage}, so it was not tried again",
    }[record.outcome]
    mend = failure.mend if failure is not None else None
    if record.outcome is Outcome.HUNG:
        mend = f"if `top` shows ANECompilerService at work, `{END_COMMAND}` ends it"
    return Finding(subject=subject, level=Level.FAIL, text=said, mend=mend)


def judged(
    records: Sequence[TrialRecord],
    facts: DeviceFacts,
    describe: Callable[[TrialRecord], str],
    extra: Callable[[TrialRecord], list[Finding]] = lambda _: [],
) -> list[Finding]:
    """Return a finding per trial: did not run, wrong numbers, wrong device, a failed check, or fine.

    The first of these that applies is reported. The findings of `extra` on trials that ran follow.
    """
    findings = []
    for record in records:
        findings.append(broken(record) or _judge_done(record, facts, describe(record)))
        findings += extra(record) if record.done else []
        findings += _baseline(record)
    return findings


def _baseline(record: TrialRecord) -> list[Finding]:
    """Return a warning if the CPU alone failed, which is never the device's fault."""
    failure = record.measured.baseline
    if failure is None:
        return []
    return [
        Finding(
            subject=f"{record.trial.name} on the CPU alone",
            level=Level.WARN,
            text=f"failed while {failure.stage}: {failure.meaning or failure.text}",
            mend="the device is judged without it",
        )
    ]


def _judge_done(record: TrialRecord, facts: DeviceFacts, described: str) -> Finding:
    measured, name = record.measured, record.trial.name
    for found in measured.comparisons:
        if found.not_finite:
            return Finding(
                subject=name,
                level=Level.FAIL,
                text=f"{found.not_finite} values of {found.name} are not finite",
                mend="do not use it here",
            )
        if not comparison_right(found, record.trial):
            return Finding(
                subject=name,
                level=Level.FAIL,
                text=f"{found.name} differs from {found.against}: cosine {found.cosine:.5f}, error "
                f"{found.error:.3g}",
                mend="do not use it here",
            )
    if (lost := next((check for check in measured.checks if not check.held), None)) is not None:
        text = f"{lost.name}: no, {lost.detail}"
        return Finding(subject=name, level=lost.severity, text=text)
    if measured.planned is not None and placement(measured.planned) is not Placement.ANE:
        return Finding(subject=name, level=Level.FAIL, text=off_engine(measured.planned))
    if falls_back(record, facts):
        return _fallback(record)
    return Finding(subject=name, level=Level.OK, text=described)


def _fallback(record: TrialRecord) -> Finding:
    device = time_of(record.measured.times, Units.DEVICE)
    cpu = time_of(record.measured.times, Units.CPU)
    assert device is not None
    assert cpu is not None
    planned = record.measured.planned
    plan = "though the plan says Neural Engine" if planned is not None else "and there is no plan"
    return Finding(
        subject=record.trial.name,
        level=Level.FAIL,
        text=f"it looks like a silent fallback: a pass of {device.rows} rows takes "
        f"{device.median_ms:.1f} ms, on the CPU alone {cpu.median_ms:.1f} ms, {plan}",
        mend="do not use it here",
    )


def times_text(record: TrialRecord) -> str:
    """Return the times of passes and of loading in words."""
    measured, parts = record.measured, []
    for time in measured.times:
        where = "" if time.units is Units.DEVICE else " on the CPU alone"
        parts.append(f"{time.median_ms:.2f} ms a pass of {counted(time.rows, 'row')}{where}")
    if measured.load_seconds is not None:
        parts.append(f"loaded in {duration_text(measured.load_seconds)}")
    parts += [
        f"first pass of {counted(use.rows, 'row')} after {duration_text(use.seconds)}"
        for use in measured.first_uses
    ]
    return ", ".join(parts) or "ran"
