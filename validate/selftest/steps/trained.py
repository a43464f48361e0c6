"""Check that trained weights are as fast as random ones and give the right numbers."""

from collections.abc import Sequence

from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, Units
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.trained import TWINS
from anespec.validate.selftest.records import Measured, ModelSize, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, broken, comparison_right, judged, time_of, times_text
from anespec.validate.selftest.steps.variants import measure_variant

MAX_RATIO = 1.25
"""The factor of the random weights' time above which trained weights are reported as slower."""


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    trials = []
    for trained, twin in TWINS.items():
        if trained in scale.sizes:
            context = min(max(scale.slots), scale.sizes[trained].context)
            trials += [_trial(scale, size, context) for size in (trained, twin)]
    return tuple(trials)


def _trial(scale: Scale, size: ModelSize, context: int) -> Trial:
    build = scale.isolated(size=size, context=context)
    return Trial(step="trained", name=size, build=build, needs_bytes=scale.room_for(size))


def _run(trial: Trial, bench: Bench) -> Measured:
    return measure_variant(trial, bench)


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    named = {record.trial.name: record for record in records}
    findings: list[Finding] = []
    for trained, twin in TWINS.items():
        if (record := named.get(trained)) is None:
            continue
        findings += [_judge_small(record)] if trained == "embedded" else judged([record], facts, times_text)
        if (
            twin in named
            and (slower := _times_slower(record, named[twin])) is not None
            and slower > MAX_RATIO
        ):
            findings.append(
                Finding(
                    subject=f"{trained} beside random weights",
                    level=Level.WARN,
                    text=f"trained weights take {slower:.1f} times as long as random ones of the same shapes",
                    mend="expect the times of the other steps to be longer by that factor",
                )
            )
    return findings


def _judge_small(record: TrialRecord) -> Finding:
    """Judge the embedded model, which is too small for a Neural Engine, without its placement."""
    if (found := broken(record)) is not None:
        return found
    wrong = next((c for c in record.measured.comparisons if not comparison_right(c, record.trial)), None)
    if wrong is not None:
        text = f"{wrong.name} differs from {wrong.against}: error {wrong.error:.3g}"
        return Finding(subject=record.trial.name, level=Level.FAIL, text=text, mend="send the report back")
    return Finding(subject=record.trial.name, level=Level.OK, text=times_text(record))


def _times_slower(trained: TrialRecord, twin: TrialRecord) -> float | None:
    """Return how many times longer the device takes for a byte of trained weights."""
    of_trained, of_twin = (time_of(each.measured.times, Units.DEVICE) for each in (trained, twin))
    bytes_of = trained.measured.weight_bytes, twin.measured.weight_bytes
    if of_trained is None or of_twin is None or not all(bytes_of) or not of_twin.median_ms:
        return None
    return (of_trained.median_ms / of_twin.median_ms) * ((bytes_of[1] or 0) / (bytes_of[0] or 1))


TRAINED = Step(
    id="trained",
    title="Trained weights",
    asks="Are they as fast as random ones of the same shapes, with the right numbers?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
