"""Run one shard alone in a worker, for the golden gate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anespec.manifests.channel_layout import DECLARED, channels_of, laid_out, row_count, row_of
from anespec.manifests.schema import HIDDEN_IN, Manifest
from anespec.runtime.backends.coreml.start_times import StartTimes
from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.runner import Channels, Inputs, Outputs, Tensor
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.shared_memory import SharedMemory
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.slots import SlotTransfer
from anespec.runtime.backends.worker.stages import Port, Stage, integer_parts, memory_parts
from anespec.runtime.backends.worker.worker_pool import WorkerPool


@dataclass(frozen=True)
class WorkerOutputs:
    """The outputs of a pass, which are arrays in shared memory, by name."""

    places: dict[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """Return a copy of an output; see Outputs."""
        return self.places[name].copy()

    def lane(self, name: str, lane: int) -> Channels:
        """Return one lane of an output; see Outputs."""
        return row_of(self.places[name], lane)


@dataclass(frozen=True)
class WorkerStats:
    """The counters of a worker since it loaded.

    `milliseconds` is the time of all predictions. `copied` is the number of bytes of outputs that Core ML did
    not write to the requested memory.
    """

    milliseconds: float
    copied: int
    resident_bytes: int


class WorkerRunner:
    """A ShardRunner over a worker that holds one stage. If the worker dies, its states are zeros again."""

    takes_homes = False
    partial_spans = False

    def __init__(
        self, stage: Stage, manifest: Manifest, program: WorkerProgram, limits: WorkerLimits
    ) -> None:
        """Start the worker; raise AnespecError if it cannot load the shard."""
        self._stage = stage
        self._write_inputs = [pool.write_input for pool in manifest.pools]
        parts = memory_parts([stage], manifest.hyperparameters.vocabulary)
        self._shared = SharedMemory(parts, program.expected_build, integer_parts([stage]))
        try:
            self._workers = WorkerPool(program, self._shared, [stage], manifest, limits)
        except BaseException:
            self._shared.close()
            raise
        self._slots = SlotTransfer(self._workers, self._shared)
        self._rows = 0
        self._homes: list[list[int]] = []

    @property
    def starts(self) -> Mapping[str, StartTimes]:
        """The start times of the stage, by the path of its compiled shard."""
        return self._workers.starts

    def start(self, inputs: Inputs) -> None:
        """Write the inputs into the shared memory; see ShardRunner.

        Raises:
            ValueError: a write mask breaks its contract (see homes_of).
        """
        self._rows = row_count(inputs[HIDDEN_IN])
        for port in self._stage.inputs:
            given = inputs[port.name]
            if port.dtype == "int32":
                self._shared.integers(port.part(self._rows))[...] = given
            else:
                self._place(port)[...] = (
                    given if channels_of(port.shape) is None else laid_out(given, DECLARED)
                )
        if self._stage.caches:
            nowhere = [-1] * self._rows
            self._homes = [
                homes_of(inputs[name]).tolist() if name in inputs else nowhere for name in self._write_inputs
            ]

    def finish(self) -> Outputs:
        """Run the pass; see ShardRunner.

        Raises:
            StateLostError: the worker died and was started again.
            AnespecError: Core ML fails in the shard.
        """
        self._workers.ask(0, "run", {"stage": 0, "rows": self._rows, "homes": self._homes})
        return WorkerOutputs({port.name: self._place(port) for port in self._stage.outputs})

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; see ShardRunner. Raises like `finish`."""
        self.start(inputs)
        outputs = self.finish()
        return {port.name: outputs.tensor(port.name) for port in self._stage.outputs}

    def read_state(self, name: str) -> Tensor:
        """Return a copy of a state; see ShardRunner."""
        return self.read_slots(name, 0, self._state_shape(name)[2])

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self.write_slots(name, 0, value)

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of some slots of a state; see ShardRunner."""
        pool, index = self._position(name)
        return self._slots.export(pool, first, count)[index]

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner.

        A worker takes slots of all states of a pool, so those of the other states are read first.
        """
        pool, index = self._position(name)
        values = self._slots.export(pool, first, value.shape[2])
        values[index] = np.asarray(value, np.float16)
        self._slots.import_(pool, first, values)

    def stats(self) -> WorkerStats:
        """Return the worker's counters; raises like `finish`."""
        stats = self._workers.ask(0, "stats", {})
        return WorkerStats(sum(stats["stages"]), stats["copied"], stats["resident_bytes"])

    def close(self) -> None:
        """End the worker."""
        self._workers.close()
        self.__dict__.pop("_slots", None)
        self._shared.close()

    def _place(self, port: Port) -> Tensor:
        return self._shared.tensor(port.part(self._rows))

    def _state_shape(self, name: str) -> tuple[int, ...]:
        return next(state.shape for state in self._stage.held if state.name == name)

    def _position(self, name: str) -> tuple[int, int]:
        """Return the index of a state's pool, and the state's index among the states of that pool."""
        pool = next(state.pool for state in self._stage.held if state.name == name)
        return pool, [state.name for state in self._stage.held if state.pool == pool].index(name)
