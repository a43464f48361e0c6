"""Run passes through a layer shard in a native worker, for the worker step and for timing."""

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

WARM_UP_PASSES = 2
"""The passes that run before any is timed."""

_UNITS: dict[Units, ComputeUnits] = {Units.DEVICE: "cpuAndNeuralEngine", Units.CPU: "cpuOnly"}


class WorkerSession:
    """A layer shard loaded by a worker, through which one sequence runs."""

    def __init__(
        self,
        program: WorkerProgram,
        manifest: Manifest,
        shard: LayerShard,
        compiled: Path,
        units: Units,
        seconds: float,
    ) -> None:
        """Start the worker; each request may take `seconds`. Raises AnespecError."""
        (stage,) = stages_of(manifest, (shard,), {shard.path: compiled.absolute()})
        limits = WorkerLimits(pass_seconds=seconds, load_seconds=seconds, units=_UNITS[units])
        self._runner = WorkerRunner(stage, manifest, program, limits)
        self._inputs = PassInputs(manifest)
        self._milliseconds = 0.0

    def run(self, step: Pass) -> tuple[Tensor, float]:
        """Run one pass; return its hidden states and the seconds of the prediction by the worker's clock.

        Raises:
            AnespecError: the shard fails, or the worker died.
        """
        output = self._runner.run(self._inputs.of(step.rows, step.hidden))[HIDDEN_OUT]
        before, self._milliseconds = self._milliseconds, self.stats().milliseconds
        return output, (self._milliseconds - before) / 1000

    @property
    def starts(self) -> Mapping[str, StartTimes]:
        """Return the start times of the shard, by the path of its compiled form."""
        return self._runner.starts

    def stats(self) -> WorkerStats:
        """Return the worker's counts since it loaded."""
        return self._runner.stats()

    def close(self) -> None:
        """End the worker."""
        self._runner.close()


def first_uses_in_worker(
    program: WorkerProgram, manifest: Manifest, shard: LayerShard, compiled: Path, seconds: float
) -> tuple[FirstUse, ...]:
    """Start a new worker and return what it waits for per width; raises like WorkerSession."""
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
    """Return the time of these passes in a new worker; raises like WorkerSession."""
    with closing(WorkerSession(program, manifest, shard, compiled, units, seconds)) as session:
        spent = [session.run(step)[1] for step in steps]
    time = pass_time(spent, len(steps[0].rows), manifest.pools[0].slots, units)
    return time.model_copy(update={"through": "worker"})


def pass_time(seconds: Sequence[float], rows: int, slots: int, units: Units) -> PassTime:
    """Return the median and the shortest time of passes that took `seconds`, without the first ones."""
    timed = [1000 * each for each in seconds[WARM_UP_PASSES:]]
    return PassTime(
        rows=rows,
        slots=slots,
        units=units,
        median_ms=statistics.median(timed),
        least_ms=min(timed),
        count=len(timed),
    )
