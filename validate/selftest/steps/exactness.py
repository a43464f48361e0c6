"""Run the exactness gate on this device: what speculation needs, and region, width and span."""

from collections.abc import Sequence
from contextlib import closing

from anespec.manifests.schema import Shapes
from anespec.manifests.verdicts import REQUIRED_FOR_SPECULATION, Invariance, RunEnvironment, Status
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, broken

INVARIANCES, WIDTHS = "invariances", "widths"
"""The trial with one shape, and the trial that only checks whether functions of several widths agree."""


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return (
        Trial(step="exactness", name=INVARIANCES, build=scale.isolated(sequences=2)),
        Trial(step="exactness", name=WIDTHS, build=scale.isolated(sequences=2, shapes=Shapes.FUNCTIONS)),
    )


def _run(trial: Trial, bench: Bench) -> Measured:
    artifact, facts = bench.artifact(trial.build), bench.facts
    here = RunEnvironment(
        backend=facts.name,
        library_version=", ".join(facts.libraries),
        machine=facts.machine,
        threads=facts.processors,
        artifact=artifact.fingerprint,
    )
    bench.say("opening the artifact")
    with closing(bench.device.open(artifact)) as verifier:
        return Measured(exactness=bench.exactness(verifier, here))


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    findings = []
    for record in records:
        verdict = record.measured.exactness
        if verdict is None:
            findings += [found] if (found := broken(record)) is not None else []
            continue
        for invariance in Invariance:
            if (invariance is Invariance.WIDTH) != (record.trial.name == WIDTHS):
                continue
            standing = verdict.standing_of(invariance)
            needed = invariance in REQUIRED_FOR_SPECULATION
            detail = next((v.detail for v in verdict.invariances if v.invariance is invariance), "")
            if standing is Status.PASS:
                findings.append(Finding(subject=invariance.value, level=Level.OK, text="bit-equal"))
            elif standing is Status.FAIL:
                findings.append(
                    Finding(
                        subject=invariance.value,
                        level=Level.FAIL if needed else Level.WARN,
                        text=f"not bit-equal: {detail}" if detail else "not bit-equal",
                        mend="text is generated without speculation here"
                        if needed
                        else "the runtime does without it",
                    )
                )
            elif invariance is not Invariance.REPEAT:  # The step of that name measures it.
                findings.append(Finding(subject=invariance.value, level=Level.NOT_HERE, text=str(standing)))
    return findings


EXACTNESS = Step(
    id="exactness",
    title="Exactness, with region, width and span",
    asks="May this machine speculate, and which optional techniques may it use?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
