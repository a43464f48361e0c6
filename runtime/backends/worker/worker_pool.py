"""Run passes through all workers of an artifact, and replace workers that die.

Each worker holds some stages; all use one shared memory. A pass runs in one worker after another. If a worker
dies or hangs, its states are lost, and those of the others no longer match them. It is then started again,
all states are reset to zeros, and the caller gets StateLostError.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from anespec.manifests.schema import Manifest
from anespec.runtime.backends.coreml.start_times import FirstPass, StartTimes, added_up
from anespec.runtime.backends.worker.process import (
    Refusal,
    WorkerLostError,
    WorkerProcess,
    WorkerProgram,
)
from anespec.runtime.backends.worker.shared_memory import SharedMemory
from anespec.runtime.backends.worker.sharing import WorkerLimits, shared_out
from anespec.runtime.backends.worker.stages import Stage, first_pass_inputs
from anespec.runtime.passes import StateLostError
from anespec.system.coreml_errors import error_sentence, known_error
from anespec.system.errors import AnespecError, ArtifactError

_log = logging.getLogger(__name__)

MAX_STARTS = 3
"""The number of times that a worker is started before the pool gives up."""

Reply = Mapping[str, Any]


class ShardRefusedError(ArtifactError):
    """Core ML refused a stage's shard, or failed in it; `text` is its error message."""

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(f"{stage}: {error_sentence(text)}")
        self.stage = stage
        self.text = text


class LoadLostError(WorkerLostError):
    """A worker was lost while it loaded `stages`, paths of compiled shards."""

    def __init__(self, lost: WorkerLostError, stages: Sequence[str]) -> None:
        super().__init__(str(lost), lost.text)
        self.stages = tuple(stages)


class WorkersDieError(AnespecError):
    """A worker was lost at every start; `lost` is the last loss."""

    def __init__(self, lost: WorkerLostError | None) -> None:
        super().__init__(
            f"{lost}, {MAX_STARTS} times in a row while it started; free memory, give each worker fewer "
            "weights (--worker-budget), or use another backend (--backend openvino)"
        )
        self.lost = lost


class WorkerPool:
    """The workers that together hold all stages of an artifact."""

    def __init__(
        self,
        program: WorkerProgram,
        shared: SharedMemory,
        stages: Sequence[Stage],
        manifest: Manifest,
        limits: WorkerLimits,
    ) -> None:
        """Start the workers and load the stages in them.

        Raises:
            ShardRefusedError: Core ML cannot load a shard.
            WorkersDieError: a worker was lost at every start.
        """
        self._program = program
        self._shared = shared
        self._stages = stages
        self._written_by = frozenset(pool.write_input for pool in manifest.pools)
        self._limits = limits
        self.shares = tuple(
            tuple(stages[index] for index in share)
            for share in shared_out([stage.bytes for stage in stages], limits.budget)
        )
        self._loads = [
            {
                "compute_units": limits.units,
                "reshape_hint": manifest.reshape_hint,
                "first_passes": True,
                "vocabulary": manifest.hyperparameters.vocabulary,
                "stages": [_load_fields(stage) for stage in share],
            }
            for share in self.shares
        ]
        self._workers: list[WorkerProcess | None] = [None] * len(self.shares)
        self.starts: dict[str, StartTimes] = {}
        """The start times of each stage in the process that holds it, by path."""
        self._pass: Mapping[str, Any] | None = None
        try:
            self._restore(None)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids, in the order of the stages."""
        return tuple(worker.pid for worker in self._workers if worker is not None)

    def begin_pass(self, fields: Mapping[str, Any]) -> None:
        """Begin a pass in the first worker.

        Raises:
            StateLostError: a worker was lost; all are ready again, with states of zeros.
            AnespecError: a worker was lost and cannot be replaced.
        """
        with self._replacing():
            self._worker(0).send("pass", fields, self._limits.pass_seconds)
            self._pass = fields

    def finish_pass(self) -> list[Reply]:
        """Wait for the first worker, then run the pass in each of the others; return all replies in order.

        Raises like `begin_pass`.
        """
        fields, self._pass = self._pass, None
        if fields is None:
            raise AnespecError("no pass was begun")
        seconds = self._limits.pass_seconds
        with self._replacing():
            replies: list[Reply] = [self._worker(0).reply(seconds)]
            for index in range(1, len(self._workers)):
                replies.append(self._worker(index).ask("pass", fields, seconds))
        return replies

    def ask(self, index: int, operation: str, fields: Mapping[str, Any]) -> Reply:
        """Send a request to one worker and return its reply; raises like `begin_pass`."""
        with self._replacing():
            return self._worker(index).ask(operation, fields, self._limits.pass_seconds)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            if worker is not None:
                worker.stop()
        self._workers = [None] * len(self.shares)

    def _worker(self, index: int) -> WorkerProcess:
        worker = self._workers[index]
        if worker is None:
            raise WorkerLostError("the worker could not be started after it was lost")
        return worker

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        """If a worker or its states are lost within the block, replace it and raise StateLostError.

        A worker in which Core ML failed is replaced, too, since a new process fixes the error.
        """
        try:
            yield
        except WorkerLostError as lost:
            self._pass = None
            _log.info("%s; starting it again", lost)
            self._restore(lost)
            raise StateLostError(f"{lost}; it was started again") from lost
        except Refusal as refusal:
            failure = _failure(refusal)
            if not (isinstance(failure, ShardRefusedError) and _spoils(failure)):
                raise failure from None
            self._pass = None
            self._end_holder_of(failure.stage)
            _log.info("%s; starting the worker again", failure)
            self._restore(WorkerLostError(str(failure)))
            raise StateLostError(str(failure)) from None

    def _end_holder_of(self, stage: str) -> None:
        for worker, share in zip(self._workers, self.shares, strict=True):
            if worker is not None and any(each.path == stage for each in share):
                worker.end()

    def _restore(self, lost: WorkerLostError | None) -> None:
        """Start the workers that are missing or dead, and set all states to zeros.

        Raises:
            ShardRefusedError: Core ML cannot load a shard.
            WorkersDieError: a worker was lost at every start.
        """
        for _ in range(MAX_STARTS):
            try:
                self._start_missing()
                return
            except WorkerLostError as again:
                lost = again
            except Refusal as refusal:
                raise _failure(refusal) from None
        raise WorkersDieError(lost)

    def _start_missing(self) -> None:
        """Start the missing workers and load their stages, then set all states and caches to zeros.

        Raises:
            LoadLostError: a worker died while it loaded; it is missing again.
            WorkerLostError: a worker died otherwise; it is missing again.
            Refusal: a worker could not load; it has been ended.
        """
        for index, worker in enumerate(self._workers):
            if worker is not None and not worker.alive:
                worker.end()
                self._workers[index] = None
        is_first = not any(self._workers)
        begun: list[WorkerProcess] = []
        try:
            with first_pass_inputs(self._shared, self._stages, self._written_by):
                self._load_missing(begun)
            for worker in () if is_first else filter(None, self._workers):
                worker.ask("reset", {}, self._limits.pass_seconds)
        except BaseException:
            # A worker that has not replied yet might reply later, during another request.
            for worker in begun:
                worker.end()
            raise

    def _load_missing(self, begun: list[WorkerProcess]) -> None:
        """Start the missing workers and load their stages; append each started worker to `begun`."""
        for index, worker in enumerate(self._workers):
            if worker is None:
                begun.append(WorkerProcess(self._program, self._shared))
                self._workers[index] = begun[-1]
                begun[-1].send("load", self._loads[index], self._limits.load_seconds)
                if self._limits.in_turn:
                    self._await_load(begun[-1])
        for worker in () if self._limits.in_turn else begun:
            self._await_load(worker)

    def _await_load(self, worker: WorkerProcess) -> None:
        paths = [stage.path for stage in self._share_of(worker)]
        try:
            reply = worker.reply(self._limits.load_seconds)
        except WorkerLostError as lost:
            raise LoadLostError(lost, paths) from lost
        starts: dict[str, list[StartTimes]] = {}
        for path, fields in zip(paths, reply.get("stages", ()), strict=False):
            starts.setdefault(path, []).append(_start_of(fields))
        self.starts |= {path: times for path, each in starts.items() if (times := added_up(each)) is not None}

    def _share_of(self, worker: WorkerProcess) -> tuple[Stage, ...]:
        return self.shares[self._workers.index(worker)]


def _spoils(failure: ShardRefusedError) -> bool:
    """Return whether Core ML's error in a pass leaves the states unusable."""
    known = known_error(failure.text)
    return known is not None and known.spoils


def _start_of(fields: Mapping[str, Any]) -> StartTimes:
    """Parse the start times of one stage in a reply to `load`."""
    passes = (
        FirstPass(rows=each["rows"], seconds=each["milliseconds"] / 1000)
        for each in fields.get("first_passes", ())
    )
    return StartTimes(load_seconds=fields["seconds"], passes=tuple(passes))


def _load_fields(stage: Stage) -> dict[str, Any]:
    """Return the fields of a stage in the message `load`."""
    fields = asdict(stage)
    del fields["bytes"]
    return fields


def _failure(refusal: Refusal) -> AnespecError:
    code = "" if refusal.code is None else f" ({refusal.domain or 'code'} {refusal.code})"
    if refusal.kind in ("load", "predict"):
        return ShardRefusedError(refusal.stage or "the shard", f"{refusal.text}{code}")
    return AnespecError(f"the worker failed: {refusal.text}{code}; report this with the model's name")
