"""Step 11: real sizes: passes of 1 to 64 rows, 512 to 2048 slots, and all of Phi-4-mini's layers."""

import statistics
import time
from collections.abc import Sequence
from contextlib import closing

from anespec.manifests.formatting import bytes_text, duration_text
from anespec.manifests.schema import Shapes, Target
from anespec.runtime.backends.worker.sharing import shared_out
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench, memory_now
from anespec.validate.selftest.device import DeviceFacts, Units
from anespec.validate.selftest.groups import Group, open_groups
from anespec.validate.selftest.records import Build, Check, Measured, PassTime, Trial, TrialRecord
from anespec.validate.selftest.scale import Scale
from anespec.validate.selftest.session import WARMING
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
    """Everything loaded at once, as the worker would, and passed through; then the same on the processor.

    What is more than one process may hold is shared out to several, by the worker's own rule.
    """
    build, manifest = trial.build, bench.artifact(trial.build).manifest
    compiling = sum(bench.compiled(build, shard)[1] for shard in manifest.shards)
    sizes = [shard.bytes * len(manifest.functions) for shard in manifest.shards]
    shares = shared_out(sizes, bench.scale.worker_budget)
    on_device, on_cpu = (_stack(trial, bench, units, shares) for units in (Units.DEVICE, Units.CPU))
    return on_device.model_copy(
        update={
            "compile_seconds": compiling,
            "times": (*on_device.times, *on_cpu.times),
            "processes": tuple(sum(sizes[number] for number in share) for share in shares),
        }
    )


def _stack(trial: Trial, bench: Bench, units: Units, shares: Sequence[range]) -> Measured:
    manifest = bench.artifact(trial.build).manifest
    began = time.perf_counter()
    with open_groups(bench, trial.build, shares, units) as groups:
        loaded = [group.loaded() for group in groups]
        loading = time.perf_counter() - began
        bench.say(f"passing through all layers on {units}")
        found = [_pass(groups, step) for step in passes(manifest, trial.build.block, FULL_PASSES)]
    times = [1000 * seconds for seconds, _ in found][WARMING:]
    return Measured(
        load_seconds=loading,
        weight_bytes=sum(shard.bytes for shard in manifest.shards),
        largest_shard_bytes=max(shard.bytes for shard in manifest.layer_shards),
        memory_bytes=sum(group.memory_bytes for group in loaded),
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


def _pass(groups: Sequence[Group], step: Pass) -> tuple[float, bool]:
    """The seconds of one pass through everything, and whether all of it is finite."""
    total, finite, hidden = 0.0, True, step.hidden
    for group in groups:
        hidden, passed = group.run(Pass(step.rows, hidden))
        total, finite = total + passed.seconds, finite and passed.finite
    return total, finite


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        text = times_text(record)
        if record.trial.build.size == "full":
            compiled = duration_text(record.measured.compile_seconds or 0)
            text += f", compiled in {compiled}, {bytes_text(record.measured.memory_bytes or 0)} of memory"
            text += f", {_processes(record.measured.processes)}"
        return text

    return judged(records, facts, described)


def _processes(weights: Sequence[int]) -> str:
    """How the shards were shared out."""
    if len(weights) < 2:
        return "in one process"
    return f"in {len(weights)} processes ({', '.join(bytes_text(each) for each in weights)} of weights)"


TOPOLOGY = Step(
    id="topology",
    title="Full topology",
    asks="What does a pass cost at real sizes, and which shards still run where they should?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
