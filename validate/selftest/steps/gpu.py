"""Run the same shards with MLX: do several rows cost what one costs there, and may it speculate?"""

from collections.abc import Sequence
from contextlib import closing

from anespec.manifests.verdicts import REQUIRED_FOR_SPECULATION, ExactnessVerdict, Invariance, Status
from anespec.runtime.backends import BACKENDS, MLX, circumstances, open_verifier
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.cost_measurement import ROUNDS, measure_pass_costs
from anespec.system.formatting import counted, listed
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, NotHereError, Units
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Measured, PassTime, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, broken

ROWS = (1, 4, 8, 16)


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(step="gpu", name=counted(rows, "row"), build=scale.isolated(block=rows), rows=rows)
        for rows in ROWS
    )


def _run(trial: Trial, bench: Bench) -> Measured:
    if (reason := BACKENDS[MLX].unavailable()) is not None:
        raise NotHereError(f"it needs {reason}")
    artifact = bench.artifact(trial.build)
    bench.say("opening the artifact with MLX")
    with closing(open_verifier(artifact, MLX)) as verifier:
        bench.say("timing passes")
        rows, slots = verifier.shape.block, min(verifier.shape.spans[0])
        costs = measure_pass_costs(verifier, Proven.nothing(verifier.shape))
        ms = 1000 * costs.seconds(rows, slots)
        time = PassTime(
            rows=rows, slots=slots, units=Units.DEVICE, median_ms=ms, least_ms=ms, count=2 * ROUNDS
        )
        if rows != bench.scale.block:
            return Measured(times=(time,))
        verdict = bench.exactness(verifier, circumstances(artifact, MLX))
        return Measured(times=(time,), exactness=verdict)


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    findings = []
    times = {time.rows: time.least_ms for record in records for time in record.measured.times}
    for record in records:
        name, rows, verdict = record.trial.name, record.trial.rows, record.measured.exactness
        if (found := broken(record)) is not None:
            findings.append(found)
        elif rows in times:
            beside = f", {times[rows] / times[1]:.2f} times one row" if 1 in times and rows != 1 else ""
            text = f"{times[rows]:.2f} ms a pass{beside}"
            findings.append(Finding(subject=name, level=Level.OK, text=text))
        if verdict is not None:
            findings.append(_speculation(name, verdict))
    return findings


def _speculation(name: str, verdict: ExactnessVerdict) -> Finding:
    """Return whether drafts change no bit; `repeat` is measured when an artifact is validated."""
    subject = f"{name}, with drafts"
    needed = [each for each in REQUIRED_FOR_SPECULATION if each is not Invariance.REPEAT]
    lost = [str(each) for each in needed if verdict.standing_of(each) is not Status.PASS]
    if not lost:
        return Finding(subject=subject, level=Level.OK, text="bit-equal, so it may speculate")
    return Finding(
        subject=subject,
        level=Level.WARN,
        text=f"not bit-equal ({listed(lost)})",
        mend="text is generated without speculation on it",
    )


GPU = Step(
    id="gpu",
    title="The same shards with MLX, on the GPU",
    asks="Do several rows cost what one costs there, and may it speculate?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
