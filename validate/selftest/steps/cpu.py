"""Check that packages compile, load and compute at all, on the processor alone."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from anespec.system.formatting import duration_text
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench, on_cpu
from anespec.validate.selftest.devices.device import DeviceFacts, Units
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import passes
from anespec.validate.selftest.records import Check, Measured, ModelSize, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged

SIZES: tuple[ModelSize, ...] = ("tiny", "small", "layer")


def _load_trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            step="cpu",
            name=f"d={scale.sizes[size].d}",
            build=on_cpu(scale.isolated(size=size), facts.target),
            units=Units.CPU,
            needs_bytes=scale.room_for(size),
        )
        for size in SIZES
        if size in scale.sizes
    )


def _load(trial: Trial, bench: Bench) -> Measured:
    opened = bench.open(trial.build, Units.CPU)
    with closing(opened.session) as session:
        bench.say("the first prediction")
        first, *others = list(passes(session.manifest, trial.build.block, 3))
        output, seconds = session.run(first)
        outputs = [output, *session.outputs(others)]
    finite = all(bool(np.isfinite(each).all()) for each in outputs)
    return Measured(
        compile_seconds=opened.compile_seconds,
        load_seconds=opened.load_seconds,
        first_seconds=seconds,
        weight_bytes=session.shard.bytes,
        checks=(Check(name="every output is finite", held=finite, detail="an output is not a number"),),
    )


def _judge_load(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        measured = record.measured
        return (
            f"compiled in {duration_text(measured.compile_seconds or 0)}, loaded in "
            f"{duration_text(measured.load_seconds or 0)}, first pass in "
            f"{duration_text(measured.first_seconds or 0)}"
        )

    return judged(records, facts, described)


def _table_trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            step="table",
            name=f"d={scale.sizes[size].d}",
            build=on_cpu(scale.isolated(size=size), facts.target),
            units=Units.CPU,
        )
        for size in dict.fromkeys(("small", scale.main))
        if size in scale.sizes
    )


def _table(trial: Trial, bench: Bench) -> Measured:
    with closing(bench.open(trial.build, Units.CPU).session) as session:
        return Measured(
            weight_bytes=session.shard.bytes,
            comparisons=(bench.against_torch("the hidden state", trial.build, session),),
        )


def _judge_table(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        (found,) = record.measured.comparisons
        return f"{facts.cpu} agrees with the torch table: error {found.error:.2g}"

    return judged(records, facts, described)


CPU = Step(
    id="cpu",
    title="Compile and load on the CPU alone",
    asks="Does anything work at all, before the Neural Engine is used?",
    trials=_load_trials,
    run=_load,
    judge=_judge_load,
)

TABLE = Step(
    id="table",
    title="One shard on the CPU against the torch table",
    asks="Do the operations compute the same there as in torch?",
    trials=_table_trials,
    run=_table,
    judge=_judge_table,
)
