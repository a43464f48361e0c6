"""Measure real sizes: passes of 1 to 64 rows, 512 to 2048 slots, and all of Phi-4-mini's layers."""

import time
from collections.abc import Sequence
from contextlib import closing

from anespec.manifests.schema import Target
from anespec.runtime.backends.worker.sharing import Loading, shared_out
from anespec.system.formatting import bytes_text, duration_text
from anespec.validate.cost_model.forecast import compare
from anespec.validate.findings import Finding
from anespec.validate.selftest.bench import Bench, memory_now, on_cpu
from anespec.validate.selftest.devices.device import DeviceFacts, NotHereError, Units
from anespec.validate.selftest.devices.worker_session import pass_time
from anespec.validate.selftest.groups import Group, open_groups
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import Pass, passes
from anespec.validate.selftest.records import Build, Check, Measured, Trial, TrialRecord
from anespec.validate.selftest.steps.step import Step, judged, time_of, times_text

FULL_PASSES = 8
LOADINGS: tuple[Loading, ...] = ("together", "in-turn")


def loading_name(loading: Loading) -> str:
    """Return the name of the trial that loads all of the full model in this way."""
    return f"loading {loading}"


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    trials = []
    for rows in scale.rows:
        # A processor runs any width of one package; on a Neural Engine only the default shape surely runs.
        one = facts.target is Target.CPU
        build = scale.isolated(shapes=None) if one else scale.isolated(block=rows)
        trials.append(Trial(step="topology", name=f"{rows} rows", build=build, rows=rows))
    for slots in scale.slots:
        build = scale.isolated(context=slots)
        trials.append(Trial(step="topology", name=f"{slots} slots", build=build, rows=scale.block))
    for number, topology in enumerate(scale.topologies):
        build = scale.isolated(size="full", topology=topology)
        name = f"{'+'.join(map(str, topology))} layers"
        room = scale.room_for("full")
        trials.append(Trial(step="topology", name=name, build=build, rows=scale.block, needs_bytes=room))
        if number == 0:
            trials += [Trial(step="topology", name=loading_name(each), build=build) for each in LOADINGS]
    return tuple(trials)


def _run(trial: Trial, bench: Bench) -> Measured:
    for loading in LOADINGS:
        if trial.name == loading_name(loading):
            return _loading(trial.build, bench, loading)
    if trial.build.size == "full":
        return _full(trial, bench)
    build, rows, before = trial.build, trial.rows or trial.build.block, memory_now()
    opened = bench.open(build, Units.DEVICE, rows=rows)
    with closing(opened.session) as session:
        measured = Measured(
            compile_seconds=opened.compile_seconds,
            load_seconds=opened.load_seconds,
            weight_bytes=session.shard.bytes,
            times=(bench.device_time(build, session, rows),),
            memory_bytes=max(0, memory_now() - before),
        )
    return bench.with_cpu_times(build, measured)


def _full(trial: Trial, bench: Bench) -> Measured:
    """Load everything at once, as the worker would, and run passes; then do the same on the processor.

    Shards that exceed the budget of one process are distributed over several, by the worker's own rule.
    """
    build = trial.build
    # A processor runs shards of any size: one artifact is the baseline of all topologies.
    plain = on_cpu(build, bench.facts.target).model_copy(update={"topology": bench.scale.topologies[-1]})
    measured = _stack(build, bench, Units.DEVICE)
    compared = compare(bench.artifact(build), bench.facts.machine, measured.times[0].median_ms)
    if compared is not None and bench.facts.engine:
        measured = measured.model_copy(update={"predicted_ms": compared.predicted})

    def beside_cpu(found: Measured) -> Measured:
        times = _stack(plain, bench, Units.CPU).times
        return found.model_copy(update={"times": (*found.times, *times)})

    return bench.with_baseline(measured, beside_cpu)


def _loading(build: Build, bench: Bench, loading: Loading) -> Measured:
    """Measure loading all shards, which were loaded before, in one way."""
    shards = bench.artifact(build).manifest.shards
    for shard in shards:
        bench.compiled(build, shard)
    shares = _shares(build, bench)
    if len(shares) == 1:
        raise NotHereError("one process holds the whole model, so nothing can be loaded at the same time")
    began = time.perf_counter()
    with open_groups(bench, build, shares, Units.DEVICE, in_turn=loading == "in-turn") as groups:
        for group in groups:
            group.loaded()
        return Measured(load_seconds=time.perf_counter() - began)


def _sizes(build: Build, bench: Bench) -> list[int]:
    """Return the bytes of weights of each shard."""
    return [shard.bytes for shard in bench.artifact(build).manifest.shards]


def _shares(build: Build, bench: Bench) -> tuple[range, ...]:
    return shared_out(_sizes(build, bench), bench.scale.worker_budget)


def _stack(build: Build, bench: Bench, units: Units) -> Measured:
    manifest = bench.artifact(build).manifest
    compiling = sum(bench.compiled(build, shard)[1] for shard in manifest.shards)
    sizes, shares = _sizes(build, bench), _shares(build, bench)
    began = time.perf_counter()
    with open_groups(bench, build, shares, units) as groups:
        loaded = [group.loaded() for group in groups]
        loading = time.perf_counter() - began
        bench.say(f"passing through all layers on {units}")
        found = [_pass(groups, step) for step in passes(manifest, build.block, FULL_PASSES)]
    seconds = [spent for spent, _ in found]
    return Measured(
        compile_seconds=compiling,
        load_seconds=loading,
        processes=tuple(sum(sizes[number] for number in share) for share in shares),
        weight_bytes=sum(shard.bytes for shard in manifest.shards),
        largest_shard_bytes=max(shard.bytes for shard in manifest.layer_shards),
        memory_bytes=sum(group.memory_bytes for group in loaded),
        checks=(
            Check(name="every output is finite", held=all(fine for _, fine in found), detail="some are not"),
        ),
        times=(pass_time(seconds, build.block, build.context, units),),
    )


def _pass(groups: Sequence[Group], step: Pass) -> tuple[float, bool]:
    """Return the seconds of one pass through all groups, and whether all outputs are finite."""
    total, finite, hidden = 0.0, True, step.hidden
    for group in groups:
        hidden, passed = group.run(Pass(step.rows, hidden))
        total, finite = total + passed.seconds, finite and passed.finite
    return total, finite


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        text = times_text(record)
        if record.measured.processes:
            compiled = duration_text(record.measured.compile_seconds or 0)
            text += f", compiled in {compiled}, {bytes_text(record.measured.memory_bytes or 0)} of memory"
            text += f", {_processes(record.measured.processes)}"
        text += _beside_prediction(record)
        return text

    return judged(records, facts, described)


def _beside_prediction(record: TrialRecord) -> str:
    """Return how a pass compares with its prediction, if the chip is known."""
    predicted, time = record.measured.predicted_ms, time_of(record.measured.times, Units.DEVICE)
    if predicted is None or time is None:
        return ""
    return f", {time.median_ms / predicted:.2f} times the {predicted:.1f} ms predicted"


def _processes(weights: Sequence[int]) -> str:
    """Return how the shards were distributed, in words."""
    if len(weights) < 2:
        return "in one process"
    return f"in {len(weights)} processes ({', '.join(bytes_text(each) for each in weights)} of weights)"


TOPOLOGY = Step(
    id="topology",
    title="Full topology",
    asks="What does a pass cost at real sizes, and which shards still run on the right device?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
