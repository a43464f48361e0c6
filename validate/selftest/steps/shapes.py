"""Compare the shapes of a package: a range, one fixed shape, or several functions."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

from anespec.manifests.schema import Shapes
from anespec.system.formatting import duration_text
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, Units
from anespec.validate.selftest.devices.session import digest
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import passes
from anespec.validate.selftest.records import (
    Build,
    Check,
    Digest,
    FirstUse,
    Measured,
    PassTime,
    Trial,
    TrialRecord,
)
from anespec.validate.selftest.steps.step import Step, falls_back, judged, times_text
from anespec.validate.selftest.steps.variants import measure_on_device
from anespec.validate.tuning.candidates import KNOWN

AGAIN = " again"

RANGES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        **{f"the {default} by default": {"range_default": default} for default in KNOWN.range_default[1:]},
        **{f"{hint} hint": {"reshape_hint": hint} for hint in KNOWN.reshape_hint[1:]},
    }
)
"""Ranges other than the default one, by their difference."""

LONG_LOAD = 10.0
MAX_CHANGE_FACTOR = 4.0
"""The allowed time of a pass after one of another width, divided by its time after one of the same width."""
CHANGES = 4

RESTART_SHARE = 0.5
"""A second process should start in less than this share of the first's time, if that was long."""


def variants(scale: Scale, facts: DeviceFacts) -> dict[str, Build]:
    """Return every shape of a package that is tried, by name; ranges last, since they may hang.

    Options that only ranges have are fields of Build. They are tried only on a Neural Engine, since no other
    device uses them.
    """
    form = "" if scale.kv_form is None else f", {scale.kv_form}"
    found = {f"{shapes}{form}": scale.isolated(shapes=shapes) for shapes in reversed(KNOWN.shapes)}
    if facts.engine:
        for name, choices in RANGES.items():
            found[f"{Shapes.RANGE}{form}, {name}"] = scale.isolated(shapes=Shapes.RANGE, **choices)
    return found


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(step="shapes", name=name + ending, build=build, repeat=number)
        for name, build in variants(scale, facts).items()
        for number, ending in enumerate(("", AGAIN))
    )


def _run(trial: Trial, bench: Bench) -> Measured:
    build = trial.build
    _, compile_seconds = bench.compiled(build, bench.artifact(build).manifest.layer_shards[0])
    uses = bench.first_uses(build)
    if trial.repeat:
        return _started(trial, bench, uses)
    measured = measure_on_device(trial, bench)
    others = [rows for rows in _other_rows(trial, bench) if rows != build.block]
    times, digests = list(measured.times), [_digest(trial, bench)]
    for rows in others:
        with closing(bench.open(build, Units.DEVICE, rows=rows).session) as session:
            times.append(bench.device_time(build, session, rows))
    asks = _is_range(trial) and others and bench.facts.engine
    checks = (_changing(trial, bench, others[0], times),) if asks else ()
    found = measured.model_copy(
        update={
            "compile_seconds": compile_seconds,
            "load_seconds": sum(use.load_seconds for use in uses),
            "first_uses": uses,
            "times": tuple(times),
            "digests": tuple(digests),
            "checks": (*measured.checks, *checks),
        }
    )
    return bench.with_cpu_times(build, found)


def _is_range(trial: Trial) -> bool:
    """Return whether one loaded model runs all widths; otherwise each width has its own."""
    return trial.build.shapes is Shapes.RANGE


def _changing(trial: Trial, bench: Bench, rows: int, times: Sequence[PassTime]) -> Check:
    """Check the time of passes that alternate between the block and another width, as in generation.

    Core ML may prepare a model again at every change of shape.
    """
    widths = (trial.build.block, rows)
    alone = {t.rows: t.median_ms for t in times if t.units is Units.DEVICE}
    with closing(bench.open(trial.build, Units.DEVICE).session) as session:
        steps = [list(passes(session.manifest, width, CHANGES + 1, seed=7)) for width in widths]
        bench.say(f"changing between passes of {widths[0]} and {widths[1]} rows")
        found = [[1000 * session.run(step)[1] for step in pair] for pair in zip(*steps, strict=True)]
    # The first pass of each width may take minutes in any case.
    changed = [statistics.median(each) for each in zip(*found[1:], strict=True)]
    share = max(ms / alone[width] for ms, width in zip(changed, widths, strict=True))
    return Check(
        name="changing between widths costs nothing",
        held=share <= MAX_CHANGE_FACTOR,
        detail=f"a pass after one of another width takes {share:.1f} times as long; convert with "
        "--shapes functions or static",
    )


def _other_rows(trial: Trial, bench: Bench) -> tuple[int, ...]:
    """Return the narrowest and the widest pass that the artifact runs."""
    widths = bench.widths(trial.build)
    return tuple(dict.fromkeys((widths[0], widths[-1])))


def _digest(trial: Trial, bench: Bench) -> Digest:
    with closing(bench.open(trial.build, Units.DEVICE).session) as session:
        steps = passes(session.manifest, trial.build.block, 4, seed=3)
        return Digest(name="four passes", sha256=digest(session.outputs(steps)))


def _started(trial: Trial, bench: Bench, uses: tuple[FirstUse, ...]) -> Measured:
    """Return the results of a second process: what it waited for, and its bits."""
    return Measured(
        load_seconds=sum(use.load_seconds for use in uses),
        first_uses=uses,
        digests=(_digest(trial, bench),),
    )


def waiting(record: TrialRecord) -> float:
    """Return the seconds until a process has loaded a package and run every width once."""
    return sum(use.seconds for use in record.measured.first_uses)


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    named = {record.trial.name: record for record in records}

    def extra(record: TrialRecord) -> list[Finding]:
        name = record.trial.name
        if record.trial.repeat:
            return []
        findings = []
        rows = sorted({time.rows for time in record.measured.times} - {record.trial.build.block})
        slow = [str(r) for r in rows if falls_back(record, facts, r)]
        if slow and not falls_back(record, facts, record.trial.build.block):
            findings.append(
                Finding(
                    subject=name,
                    level=Level.WARN,
                    text=f"passes of {', '.join(slow)} rows run on the CPU; only the default shape does not",
                    mend="run passes of the default shape, or convert with --shapes functions",
                )
            )
        again = named.get(f"{name}{AGAIN}")
        first = waiting(record)
        second = waiting(again) if again is not None and again.done else None
        if second is not None and first > LONG_LOAD and second > RESTART_SHARE * first:
            findings.append(
                Finding(
                    subject=name,
                    level=Level.WARN,
                    text=f"a second process starts no faster: {duration_text(second)} after "
                    f"{duration_text(first)}, until every width has run",
                    mend="every start would take as long; use the recommended --shapes",
                )
            )
        if again is not None and again.done and again.measured.digests != record.measured.digests:
            findings.append(
                Finding(
                    subject=name,
                    level=Level.FAIL,
                    text="a second process computes different bits",
                    mend="speculation will be refused here; see the step `repeat`",
                )
            )
        return findings

    return judged(records, facts, times_text, extra)


SHAPES = Step(
    id="shapes",
    title="Range, static and functions",
    asks="At which numbers of rows does a package stay on the device, and what does loading cost?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
