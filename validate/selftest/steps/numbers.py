"""Compare numbers that Neural Engines are known to treat differently with torch and the machine's CPU."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from anespec.manifests.channel_layout import to_rows
from anespec.system.errors import AnespecError
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench, on_cpu
from anespec.validate.selftest.devices.device import DeviceFacts, Tensor, Units
from anespec.validate.selftest.devices.session import ShardSession, compared
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import Pass, pass_of, passes, region_map
from anespec.validate.selftest.records import Check, Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, comparison_right, judged

ZERO, SUBNORMAL, LARGE, LONG = "zero rows", "subnormals", "large activations", "long S"
OUTLIER = 300.0
"""The value of one channel, many times the others, as trained models have them."""
ZERO_ROW_TOLERANCE = 0.05
"""The allowed difference of rows of zeros, as a share of their largest value or of 1. They attend to other
rows, but add nothing of their own."""
SUBNORMAL_VALUE = np.float16(1e-6)


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(step="numbers", name=name, build=scale.isolated()) for name in (ZERO, SUBNORMAL, LARGE, LONG)
    )


def _run(trial: Trial, bench: Bench) -> Measured:
    steps = _steps(trial, bench)
    with closing(bench.open(trial.build, Units.DEVICE).session) as session:
        bench.say("predicting")
        found = session.outputs(steps)
        checks = [_finite(found, session)]
        if trial.name == SUBNORMAL:
            checks.append(_subnormals_stay(session))
            return Measured(checks=tuple(checks))
    expected = bench.truth(trial.build, steps)
    if trial.name == ZERO:
        checks.append(_as_expected(steps, found, expected))
        return Measured(checks=tuple(checks))
    against_torch = compared("the hidden state", "torch", steps, expected, found)
    measured = Measured(comparisons=(against_torch,), checks=tuple(checks))
    return bench.with_baseline(
        measured, lambda known: _beside_cpu(trial, bench, known, steps, expected, found)
    )


def _beside_cpu(
    trial: Trial,
    bench: Bench,
    measured: Measured,
    steps: list[Pass],
    expected: list[Tensor],
    found: list[Tensor],
) -> Measured:
    """Add a comparison with the CPU alone; raise AnespecError if the CPU differs from torch."""
    with closing(bench.open(on_cpu(trial.build, bench.facts.target), Units.CPU).session) as session:
        on_processor = session.outputs(steps)
    own = compared("the hidden state", "torch", steps, expected, on_processor)
    if not comparison_right(own, trial):
        raise AnespecError(f"the CPU's hidden state differs from torch's: error {own.error:.3g}")
    beside = compared("the hidden state", "cpu", steps, on_processor, found)
    return measured.model_copy(update={"comparisons": (beside, *measured.comparisons)})


def _steps(trial: Trial, bench: Bench) -> list[Pass]:
    manifest, block = bench.artifact(trial.build).manifest, trial.build.block
    d, rng = manifest.hyperparameters.d, np.random.default_rng(4)
    if trial.name == LONG:
        return list(passes(manifest, block, 3, first=manifest.context - 3 * block, seed=4))
    hidden = rng.standard_normal((4, block, d)).astype(np.float16)
    if trial.name == ZERO:
        hidden[:, 1:] = 0
        hidden[2] = 0
    elif trial.name == SUBNORMAL:
        hidden[:, 1:] = SUBNORMAL_VALUE * np.sign(hidden[:, 1:])
    else:
        hidden[:, :, d // 2] = OUTLIER
    return [pass_of(region_map(manifest), number * block, rows) for number, rows in enumerate(hidden)]


def _finite(outputs: Sequence[Tensor], session: ShardSession) -> Check:
    values = sum(int((~np.isfinite(each)).sum()) for each in outputs)
    states = [name for name in session.state_names if not np.isfinite(session.read(name)).all()]
    detail = f"{values} values of the output" + (f", and the states {', '.join(states)}" if states else "")
    return Check(name="every number is finite", held=not values and not states, detail=detail)


def _as_expected(steps: Sequence[Pass], found: Sequence[Tensor], expected: Sequence[Tensor]) -> Check:
    worst, largest = 0.0, 1.0
    for step, ours, theirs in zip(steps, found, expected, strict=True):
        empty = ~to_rows(step.hidden).any(axis=1)
        wanted = to_rows(theirs)[empty].astype(np.float32)
        difference = np.abs(to_rows(ours)[empty] - wanted)
        worst = max(worst, float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0)))
        largest = max(largest, float(np.abs(wanted).max(initial=0.0)))
    return Check(
        name="rows of zeros give the same as in torch",
        held=worst <= ZERO_ROW_TOLERANCE * largest,
        detail=f"they differ by up to {worst:.3g}; torch's values go up to {largest:.3g}",
    )


def _subnormals_stay(session: ShardSession) -> Check:
    """Check that subnormal numbers in slots that no row writes survive a pass."""
    session.reset()
    put = {}
    for state in session.shard.states:
        put[state.name] = np.full(state.shape, SUBNORMAL_VALUE)
        session.write(state.name, put[state.name])
    (step,) = passes(session.manifest, session.manifest.block, 1)
    session.run(step)
    block = session.manifest.block
    changed = [n for n, value in put.items() if (session.read(n)[:, :, block:] != value[:, :, block:]).any()]
    return Check(
        name="subnormal numbers in states stay",
        held=not changed,
        detail=f"they are flushed to zero in {', '.join(changed[:3])}; passes make subnormal numbers only as "
        "small softmax weights of long contexts",
        severity=Level.WARN,
    )


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        errors = [f"error {c.error:.2g} against {c.against}" for c in record.measured.comparisons]
        return ", ".join(errors) or "every number is finite and correct"

    return judged(records, facts, described)


NUMBERS = Step(
    id="numbers",
    title="Numbers",
    asks="Does it compute the same as the CPU where Neural Engines are known to differ?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
