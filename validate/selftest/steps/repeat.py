"""Check that a pass gives the same bits again, in another process, compiled again, and after many others."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from anespec.manifests.schema import WeightFormat
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, Tensor, Units
from anespec.validate.selftest.devices.session import ShardSession, digest
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import passes
from anespec.validate.selftest.records import Check, Digest, Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged

REPEAT, PROCESS, COMPILED, SOAK = "repeat", "new process", "compiled again", "soak"
PASSES_PER_NOTE = 50


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    build = scale.isolated()
    same = [Trial(step="repeat", name=name, build=build) for name in (REPEAT, PROCESS, COMPILED)]
    soaks = [
        Trial(step="repeat", name=f"{SOAK} {weights}", build=scale.isolated(weights=weights))
        for weights in WeightFormat
    ]
    return (*same, *soaks)


def _run(trial: Trial, bench: Bench) -> Measured:
    opened = bench.open(trial.build, Units.DEVICE, fresh=trial.name == COMPILED)
    with closing(opened.session) as session:
        if trial.name.startswith(SOAK):
            check = _soak(session, bench)
        elif trial.name == REPEAT:
            check = _repeat(session, bench)
        else:
            check = None
        session.reset()
        return Measured(
            load_seconds=opened.load_seconds,
            digests=(Digest(name="eight passes", sha256=digest(_eight(session))),),
            checks=(check,) if check is not None else (),
        )


def _eight(session: ShardSession) -> list[Tensor]:
    return session.outputs(passes(session.manifest, session.manifest.block, 8, seed=5))


def _repeat(session: ShardSession, bench: Bench) -> Check:
    """Repeat one pass, which writes the values that its slots already hold."""
    times = bench.scale.repeats
    before, step = list(passes(session.manifest, session.manifest.block, 2, seed=5))
    session.run(before)
    first, _ = session.run(step)
    for number in range(1, times):
        if number % PASSES_PER_NOTE == 1:
            bench.say(f"repetition {number} of {times}")
        found, _ = session.run(step)
        if not np.array_equal(found.view(np.uint16), first.view(np.uint16)):
            difference = float(np.nanmax(np.abs(found.astype(np.float32) - first.astype(np.float32))))
            return Check(
                name="the same pass gives the same bits",
                held=False,
                detail=f"repetition {number} differs by up to {difference:.3g}",
            )
    return Check(name=f"the same pass gives the same bits {times} times", held=True)


def _soak(session: ShardSession, bench: Bench) -> Check:
    """Run many passes one after another; then the first ones must give the same bits as before."""
    count = bench.scale.soak
    first = digest(_eight(session))
    for number, step in enumerate(passes(session.manifest, session.manifest.block, count, seed=6)):
        if number % PASSES_PER_NOTE == 0:
            bench.say(f"pass {number} of {count}")
        output, _ = session.run(step)
        if not np.isfinite(output).all():
            return Check(name="every output is finite", held=False, detail=f"pass {number} is not")
    session.reset()
    same = digest(_eight(session)) == first
    return Check(
        name=f"{count} passes change no numbers", held=same, detail="the same passes differ afterwards"
    )


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    first = next((r for r in records if r.trial.name == REPEAT and r.done), None)

    def extra(record: TrialRecord) -> list[Finding]:
        if first is None or record.trial.name not in (PROCESS, COMPILED):
            return []
        if record.measured.digests == first.measured.digests:
            return []
        return [
            Finding(
                subject=record.trial.name,
                level=Level.FAIL,
                text="the same passes give different bits",
                mend="speculation will be refused here; please send the report back",
            )
        ]

    return judged(records, facts, _described, extra)


def _described(record: TrialRecord) -> str:
    return "; ".join(check.name for check in record.measured.checks) or "ran"


REPEATS = Step(
    id="repeat",
    title="Repetition and a soak",
    asks="Does the same pass give the same bits again, in a new process, compiled again, after others?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
