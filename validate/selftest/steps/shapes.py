"""Step 6: which shapes a package may take: a range, one, or a function for each; plan, load time, again."""

import statistics
from collections.abc import Sequence
from contextlib import closing

from anespec.manifests.formatting import duration_text
from anespec.manifests.schema import Shapes
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.device import DeviceFacts, Units
from anespec.validate.selftest.records import Build, Check, Digest, Measured, PassTime, Trial, TrialRecord
from anespec.validate.selftest.scale import Scale
from anespec.validate.selftest.session import digest
from anespec.validate.selftest.steps.step import Step, falls_back, judged, times_text
from anespec.validate.selftest.steps.variants import measure_variant
from anespec.validate.selftest.stimulus import passes

AGAIN = " again"
LONG_LOAD = 10.0
COSTLY_CHANGE = 4.0
"""A pass after one of another width may take so many times what it takes after its like."""
CHANGES = 4

SHORTER = 0.5
"""A second process should load in less than this share of the first's time, where that was long."""


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    trials = []
    for shapes in Shapes:
        build = Build(size=scale.main, shapes=shapes, block=scale.block)
        trials += [
            Trial(step="shapes", name=shapes.value + ending, build=build, repeat=number)
            for number, ending in enumerate(("", AGAIN))
        ]
    return tuple(trials)


def _run(trial: Trial, bench: Bench) -> Measured:
    if trial.repeat:
        return _again(trial, bench)
    measured = measure_variant(trial, bench)
    others = [rows for rows in _other_rows(trial, bench) if rows != trial.build.block]
    times, digests = list(measured.times), [_digest(trial, bench)]
    for rows in others:
        with closing(bench.open(trial.build, Units.DEVICE, rows=rows).session) as session:
            times += bench.both_times(trial.build, session, rows)
    asks = _is_range(trial) and others and bench.facts.engine
    checks = (_changing(trial, bench, others[0], times),) if asks else ()
    return measured.model_copy(
        update={"times": tuple(times), "digests": tuple(digests), "checks": (*measured.checks, *checks)}
    )


def _is_range(trial: Trial) -> bool:
    """Whether one loaded model runs all widths; else each has its own."""
    return trial.build.shapes is Shapes.RANGE


def _changing(trial: Trial, bench: Bench, rows: int, times: Sequence[PassTime]) -> Check:
    """What passes take that change between the block and another width, as generation's do.

    Core ML is loaded so that it makes a model anew for a shape, and may do so at every change.
    """
    widths = (trial.build.block, rows)
    alone = {t.rows: t.median_ms for t in times if t.units is Units.DEVICE}
    with closing(bench.open(trial.build, Units.DEVICE).session) as session:
        steps = [list(passes(session.manifest, width, CHANGES + 1, seed=7)) for width in widths]
        bench.say(f"changing between passes of {widths[0]} and {widths[1]} rows")
        found = [[1000 * session.run(step)[1] for step in pair] for pair in zip(*steps, strict=True)]
    # The first of each is the one that may take minutes in any case.
    changed = [statistics.median(each) for each in zip(*found[1:], strict=True)]
    share = max(ms / alone[width] for ms, width in zip(changed, widths, strict=True))
    return Check(
        name="changing between widths costs nothing",
        held=share <= COSTLY_CHANGE,
        detail=f"a pass after one of another width takes {share:.1f} times as long; convert with "
        "--shapes functions or static",
    )


def _other_rows(trial: Trial, bench: Bench) -> tuple[int, ...]:
    """The narrowest and the widest pass that the artifact takes."""
    widths = bench.widths(trial.build)
    return tuple(dict.fromkeys((widths[0], widths[-1])))


def _digest(trial: Trial, bench: Bench) -> Digest:
    with closing(bench.open(trial.build, Units.DEVICE).session) as session:
        steps = passes(session.manifest, trial.build.block, 4, seed=3)
        return Digest(name="four passes", sha256=digest(session.outputs(steps)))


def _again(trial: Trial, bench: Bench) -> Measured:
    opened = bench.open(trial.build, Units.DEVICE)
    with closing(opened.session) as session:
        bench.say("the first prediction")
        steps = passes(session.manifest, trial.build.block, 4, seed=3)
        return Measured(
            load_seconds=opened.load_seconds,
            weight_bytes=session.shard.bytes,
            digests=(Digest(name="four passes", sha256=digest(session.outputs(steps))),),
        )


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
                    text=f"passes of {', '.join(slow)} rows run on the CPU: the default shape alone stays",
                    mend="run passes of the default shape, or convert with --shapes functions",
                )
            )
        again = named.get(f"{name}{AGAIN}")
        first = record.measured.load_seconds or 0.0
        second = again.measured.load_seconds if again is not None and again.done else None
        if second is not None and first > LONG_LOAD and second > SHORTER * first:
            findings.append(
                Finding(
                    subject=name,
                    level=Level.WARN,
                    text=f"a second process loads no faster: {duration_text(second)} after "
                    f"{duration_text(first)}",
                )
            )
        if again is not None and again.done and again.measured.digests != record.measured.digests:
            findings.append(
                Finding(
                    subject=name,
                    level=Level.FAIL,
                    text="a second process computes other bits",
                    mend="speculation will be refused here; see the step `repeat`",
                )
            )
        return findings

    return judged(records, facts, times_text, extra)


SHAPES = Step(
    id="shapes",
    title="Range, static and functions",
    asks="At which numbers of rows does a package stay where it should, and what does loading cost?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
