"""Check that the native worker can be built and computes the same as the device without it."""

import time
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from anespec.system.formatting import bytes_text, duration_text
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import DeviceFacts, Tensor, Units
from anespec.validate.selftest.devices.session import compared
from anespec.validate.selftest.devices.worker_session import WARM_UP_PASSES, WorkerSession, pass_time
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.inputs.stimulus import passes
from anespec.validate.selftest.records import (
    Check,
    Measured,
    Trial,
    TrialRecord,
    WorkerFacts,
)
from anespec.validate.selftest.steps.step import Step, judged, time_of

SAME_BITS = "the same bits as without the worker"


def _trials(scale: Scale, facts: DeviceFacts) -> tuple[Trial, ...]:
    build = scale.isolated()
    return (Trial(step="worker", name="one shard", build=build, needs_bytes=scale.room_for(scale.main)),)


def _run(trial: Trial, bench: Bench) -> Measured:
    build, artifact = trial.build, bench.artifact(trial.build)
    manifest = artifact.manifest
    shard = manifest.layer_shards[0]
    bench.say("building the worker")
    began = time.perf_counter()
    program = bench.device.worker(lambda step: bench.say(f"building the worker: {step}"))
    building = time.perf_counter() - began
    compiled, compile_seconds = bench.compiled(build, shard)
    steps = list(passes(manifest, build.block, WARM_UP_PASSES + bench.scale.timed_passes))
    with closing(bench.open(build, Units.DEVICE).session) as session:
        bench.say("passes without the worker")
        expected, seconds = _both([session.run(step) for step in steps])
    bench.say("loading the shard in the worker")
    began = time.perf_counter()
    longest = bench.scale.longest
    with closing(WorkerSession(program, manifest, shard, compiled, Units.DEVICE, longest)) as runner:
        load_seconds = time.perf_counter() - began
        bench.say("passes in the worker")
        found, own_seconds = _both([runner.run(step) for step in steps])
        stats = runner.stats()
    wanted, got = np.stack(expected), np.stack(found)
    different = int((wanted.view(np.uint16) != got.view(np.uint16)).sum())
    most = float(np.abs(wanted.astype(np.float32) - got).max())
    slots = manifest.pools[0].slots
    own = pass_time(own_seconds, build.block, slots, Units.DEVICE).model_copy(update={"through": "worker"})
    measured = Measured(
        compile_seconds=compile_seconds,
        load_seconds=load_seconds,
        weight_bytes=shard.bytes,
        comparisons=(compared("the hidden state", "device", steps, expected, found),),
        checks=(
            Check(
                name=SAME_BITS,
                held=not different,
                detail=f"{different} of {got.size} values differ, by {most:.3g} at most",
                severity=Level.WARN,
            ),
        ),
        times=(own,),
        worker=WorkerFacts(
            build_seconds=building,
            written_bytes=got.nbytes,
            copied_bytes=stats.copied,
            resident_bytes=stats.resident_bytes,
            median_ms_without=pass_time(seconds, build.block, slots, Units.DEVICE).median_ms,
        ),
    )
    return bench.with_cpu_times(build, measured)


def _both(found: Sequence[tuple[Tensor, float]]) -> tuple[list[Tensor], list[float]]:
    return [output for output, _ in found], [seconds for _, seconds in found]


def _judge(records: Sequence[TrialRecord], facts: DeviceFacts) -> list[Finding]:
    def described(record: TrialRecord) -> str:
        measured, worker = record.measured, record.measured.worker
        own = time_of(measured.times, Units.DEVICE)
        assert worker is not None
        assert own is not None
        return (
            f"the same bits; {own.median_ms:.2f} ms a pass, {worker.median_ms_without:.2f} without it; "
            f"loaded in {duration_text(measured.load_seconds or 0)}, "
            f"{bytes_text(worker.resident_bytes)} of memory"
        )

    return judged(records, facts, described, _copies)


def _copies(record: TrialRecord) -> list[Finding]:
    """Warn if Core ML did not write outputs to the buffers given as outputBackings."""
    worker = record.measured.worker
    if worker is None or not worker.copied_bytes:
        return []
    copied = f"{bytes_text(worker.copied_bytes)} of {bytes_text(worker.written_bytes)}"
    return [
        Finding(
            subject=record.trial.name,
            level=Level.WARN,
            text=f"Core ML did not write outputs to the given buffers: {copied} were copied",
            mend="this costs a copy for each pass and shard; send the report back",
        )
    ]


WORKER = Step(
    id="worker",
    title="The native worker",
    asks="Can it be built, and do its passes give the device's bits?",
    trials=_trials,
    run=_run,
    judge=_judge,
)
