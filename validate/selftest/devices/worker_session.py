"""A layer shard in a native worker, given passes: what the worker step and the timing of others share."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from anespec.manifests.schema import HIDDEN_OUT, LayerShard, Manifest
from anespec.runtime.backends.coreml.start_times import StartTimes
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner, WorkerStats
from anespec.runtime.backends.worker.sharing import ComputeUnits, WorkerLimits
from anespec.runtime.backends.worker.stages import stages_of
from anespec.validate.selftest.devices.device import Tensor, Units
from anespec.validate.selftest.inputs.stimulus import Pass
from anespec.validate.selftest.records import FirstUse, PassTime

WARMING = 2
"""Passes that are run before any is timed."""

_UNITS: dict[Units, ComputeUnits] = {Units.DEVICE: "cpuAndNeuralEngine", Units.CPU: "cpuOnly"}


class WorkerSession:
    """One layer shard, loaded by a worker; a sequence runs through it."""

    def __init__(
        self,
        program: WorkerProgram,
        manifest: Manifest,
        shard: LayerShard,
        compiled: Path,
        units: Units,
        seconds: float,
    ) -> None:
        """Start the worker, each request of which may take so many seconds; raises AnespecError."""
        (stage,) = stages_of(manifest, (shard,), {shard.path: compiled.absolute()})
        limits = WorkerLimits(pass_seconds=seconds, load_seconds=seconds, units=_UNITS[units])
        self._runner = WorkerRunner(stage, manifest, program, limits)
        self._inputs = PassInputs(manifest)
        self._milliseconds = 0.0

    def run(self, step: Pass) -> tuple[Tensor, float]:
        """One pass: hidden states out, and the seconds of the prediction as the worker counts.

        Raises:
            AnespecError: the shard fails, or the worker died.
        """
        output = self._runner.run(self._inputs.of(step.rows, step.hidden))[HIDDEN_OUT]
        before, self._milliseconds = self._milliseconds, self.stats().milliseconds
        return output, (self._milliseconds - before) / 1000

    @property
    def starts(self) -> Mapping[str, StartTimes]:
        """What starting the shard took, by the path of its compiled form."""
        return self._runner.starts

    def stats(self) -> WorkerStats:
        """The worker's counts since it loaded."""
        return self._runner.stats()

    def close(self) -> None:
        """End the worker."""
        self._runner.close()


def first_uses_in_worker(
    program: WorkerProgram, manifest: Manifest, shard: LayerShard, compiled: Path, seconds: float
) -> tuple[FirstUse, ...]:
    """What a worker of its own takes to load a shard and run each width once; raises like WorkerSession."""
    with closing(WorkerSession(program, manifest, shard, compiled, Units.DEVICE, seconds)) as session:
        (start,) = session.starts.values()
    first = min(each.rows for each in start.passes)
    return tuple(
        FirstUse(
            rows=each.rows,
            load_seconds=start.load_seconds if each.rows == first else 0.0,
            first_seconds=each.seconds,
            through="worker",
        )
        for each in sorted(start.passes, key=lambda each: each.rows)
    )


def time_in_worker(
    program: WorkerProgram,
    manifest: Manifest,
    shard: LayerShard,
    compiled: Path,
    units: Units,
    seconds: float,
    steps: Sequence[Pass],
) -> PassTime:
    """How long these passes take in a worker of their own; raises like WorkerSession."""
    with closing(WorkerSession(program, manifest, shard, compiled, units, seconds)) as session:
        spent = [session.run(step)[1] for step in steps]
    time = pass_time(spent, len(steps[0].rows), manifest.pools[0].slots, units)
    return time.model_copy(update={"through": "worker"})


def pass_time(seconds: Sequence[float], rows: int, slots: int, units: Units) -> PassTime:
    """The typical and the least time of passes that took so many seconds, after the first few."""
    timed = [1000 * each for each in seconds[WARMING:]]
    return PassTime(
        rows=rows,
        slots=slots,
        units=units,
        median_ms=statistics.median(timed),
        least_ms=min(timed),
        count=len(timed),
    )
