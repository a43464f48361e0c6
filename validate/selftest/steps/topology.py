"""Step 11: real sizes: passes of 1 to 64 rows, 512 to 2048 slots, and all of Phi-4-mini's layers."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np

from anespec.manifests.formatting import bytes_text, duration_text
from anespec.manifests.schema import HIDDEN_IN, HeadShard, Shapes, Target
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench, memory_now
from anespec.validate.selftest.device import DeviceFacts, LoadedModel, Units
from anespec.validate.selftest.records import Build, Check, Measured, PassTime, Trial, TrialRecord
from anespec.validate.selftest.scale import Scale
from anespec.validate.selftest.session import WARMING, ShardSession
from anespec.validate.selftest.steps.step import Step, judged, times_text
from anespec.validate.selftest.stimulus import Pass, passes

ROWS, SLOTS, LAYERS = "rows", "slots", "layers"
FULL_PASSES = 8


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    deepest = max(scale.slots)
    trials = []
    for rows in scale.rows:
        # A processor runs any width of one package; on a Neural Engine the default shape alone is sure.
        one = facts.target is Target.CPU
        build = Build(
            size=scale.main,
            block=scale.block if one else rows,
            context=deepest,
            shapes=None if one else Shapes.STATIC,
        )
        trials.append(Trial(step="topology", name=f"{rows} rows", build=build, rows=rows))
    for slots in scale.slots:
        build = Build(size=scale.main, block=scale.block, context=slots)
        trials.append(Trial(step="topology", name=f"{slots} slots", build=build, rows=scale.block))
    for topology in scale.topologies:
        build = Build(size="full", block=scale.block, context=deepest, topology=topology)
        trials.append(
            Trial(
                step="topology",
                name=f"{'+'.join(map(str, topology))} layers",
                build=build,
                rows=scale.block,
                needs_bytes=scale.room_for("full"),
            )
        )
    return tuple(trials)


def _run(trial: Trial, bench: Bench) -> Measured:
    if trial.build.size == "full":
        return _full(trial, bench)
    rows, before = trial.rows or trial.build.block, memory_now()
    opened = bench.open(trial.build, Units.DEVICE, rows=rows)
    with closing(opened.session) as session:
        return Measured(
            compile_seconds=opened.compile_seconds,
            load_seconds=opened.load_seconds,
            weight_bytes=session.shard.bytes,
            times=bench.both_times(trial.build, session, rows),
            memory_bytes=max(0, memory_now() - before),
        )


def _full(trial: Trial, bench: Bench) -> Measured:
    """Everything loaded at once, as the runtime would, and passed through; then the same on the processor."""
    measured = []
    for units in (Units.DEVICE, Units.CPU):
        with ExitStack() as stack:
            measured.append(_stack(trial, bench, units, stack))
    on_device, on_cpu = measured
    return on_device.model_copy(update={"times": (*on_device.times, *on_cpu.times)})


def _stack(trial: Trial, bench: Bench, units: Units, stack: ExitStack) -> Measured:
    manifest, before = bench.artifact(trial.build).manifest, memory_now()
    layers: list[ShardSession] = []
    heads: list[LoadedModel] = []
    compiling = loading = 0.0
    for number, _ in enumerate(manifest.layer_shards):
        opened = bench.open(trial.build, units, shard=number)
        layers.append(stack.enter_context(closing(opened.session)))
        compiling, loading = compiling + opened.compile_seconds, loading + opened.load_seconds
    for head in manifest.head_shards:
        model, spent = bench.open_head(trial.build, head, units)
        heads.append(stack.enter_context(closing(model)))
        loading += spent
    steps = list(passes(manifest, trial.build.block, FULL_PASSES))
    bench.say(f"passing through all layers on {units}")
    found = [_pass(layers, heads, manifest.head_shards, step) for step in steps]
    times = [1000 * seconds for seconds, _ in found][WARMING:]
    return Measured(
        compile_seconds=compiling,
        load_seconds=loading,
        weight_bytes=sum(shard.bytes for shard in manifest.shards),
        largest_shard_bytes=max(shard.bytes for shard in manifest.layer_shards),
        memory_bytes=max(0, memory_now() - before),
        checks=(
            Check(name="every output is finite", held=all(fine for _, fine in found), detail="some are not"),
        ),
        times=(
            PassTime(
                rows=trial.build.block,
                slots=trial.build.context,
                units=units,
                median_ms=statistics.median(times),
                least_ms=min(times),
                count=len(times),
            ),
        ),
    )


def _pass(
    layers: Sequence[ShardSession], heads: Sequence[LoadedModel], shards: Sequence[HeadShard], step: Pass
) -> tuple[float, bool]:
    """The seconds of one pass through everything, and whether all of it is finite."""
    total, finite, hidden = 0.0, True, step.hidden
    for session in layers:
        hidden, seconds = session.run(Pass(step.rows, hidden))
        total += seconds
    finite = bool(np.isfinite(hidden).all())
    for model, shard in zip(heads, shards, strict=True):
        found = model.predict({HIDDEN_IN: hidden}, None)
        total += found.seconds
        finite = finite and bool(np.isfinite(found.outputs[shard.outputs[0].name]).all())
    return total, finite


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        text = times_text(record)
        if record.trial.build.size == "full":
            compiled = duration_text(record.measured.compile_seconds or 0)
            text += f", compiled in {compiled}, {bytes_text(record.measured.memory_bytes or 0)} of memory"
        return text

    return judged(records, facts, described)


TOPOLOGY = Step(
    id="topology",
    title="Full topology",
    asks="What does a pass cost at real sizes, and which shards still run where they should?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
