"""Run a program with MLX on its default device: the GPU of a Mac, elsewhere the processor."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import laid_out, layout_of, row_of
from anespec.runtime.backends.portable.arguments import refusing
from anespec.runtime.backends.portable.fusions import fused
from anespec.runtime.backends.portable.mlx_gpu.graph import LIBRARY, Arrays, PassGraph
from anespec.runtime.backends.portable.mlx_gpu.library import on_gpu, worker
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_reads import read_masks, read_slots
from anespec.runtime.backends.portable.slot_writes import (
    masks_read_elsewhere,
    write_masks,
    written_slots,
)
from anespec.runtime.backends.portable.soundness import require_room_for_states
from anespec.runtime.backends.portable.spans import slot_axes
from anespec.runtime.backends.portable.state_entries import split_states
from anespec.runtime.backends.runner import Channels, Inputs, Outputs, PoolNames, Tensor
from anespec.runtime.passes import StateLostError

Numbers = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class MLXOutputs:
    """The results of a pass in fp32, views of MLX's memory."""

    values: Mapping[str, NDArray[np.float32]]

    def tensor(self, name: str) -> Tensor:
        """Return a copy of an output; see Outputs."""
        # A value beyond fp16's range becomes an infinity, which the gates and the sampler report.
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(self.values[name], np.float16)

    def lane(self, name: str, lane: int) -> Channels:
        """Return one lane of an output; see Outputs."""
        return row_of(self.values[name], lane)


class MLXRunner:
    """A ShardRunner over MLX. Its states are fp16 arrays, which a pass takes and returns.

    A pass is one function of arrays. On a GPU, which then runs many small operations as one kernel, it is
    compiled for each T and span. For a processor MLX writes each such kernel as a C++ file and calls the
    system's compiler, which takes some ten seconds for the passes of a small model, or is not there. The
    runner drops the old states before MLX computes the new ones, so MLX writes rows into the same memory.
    """

    def __init__(self, program: Program, threads: int, pools: tuple[PoolNames, ...] = ()) -> None:
        """Make the weights and states. Without `pools` every pass attends to all slots.

        MLX chooses its number of threads itself, so `threads` has no effect.

        Raises:
            ArtifactError: the table lacks an operation, or MLX refuses the program.
        """
        require_room_for_states(program, np.dtype(np.float16).itemsize)
        split = split_states(program)
        self.entries = split.entries
        self.program = fused(split.program)
        self.axes = slot_axes(self.program, split.pools(pools))
        self.masks = write_masks(self.program)
        self.read_masks = read_masks(self.program)
        self.whole_masks = masks_read_elsewhere(self.program)
        self._pools = split.pools(pools) if self.axes is not None else ()
        self._running: Future[Mapping[str, NDArray[np.float32]]] | None = None
        with refusing(program.source, LIBRARY):
            worker().call(self._open)

    def _open(self) -> None:
        graph = PassGraph(self.program, self._pools, self.axes or {})
        self.program, self.experts = graph.program, graph.experts
        self._function: Callable[..., tuple[Arrays, Arrays]] = mx.compile(graph) if on_gpu() else graph
        self._clear()

    def _clear(self) -> None:
        self.states = {name: mx.zeros(shape, mx.float16) for name, shape in self.program.states.items()}
        mx.eval(self.states)

    @property
    def takes_homes(self) -> bool:
        """Whether slot numbers can replace all write masks; see ShardRunner."""
        return bool(self.masks) and not self.whole_masks

    @property
    def partial_spans(self) -> bool:
        """Whether all shapes can be adapted to spans; see ShardRunner."""
        return self.axes is not None

    def start(self, inputs: Inputs) -> None:
        """Begin a pass on MLX's thread; see ShardRunner.

        Raises:
            ValueError: a mask breaks its contract (see slot_writes and slot_reads).
        """
        given: Numbers = {}
        written, lanes, read, shown = Numbers(), Numbers(), Numbers(), Numbers()
        for name, shape in self.program.inputs.items():
            if name in self.masks:
                to_write = written_slots(inputs[name])
                written[name], lanes[name] = to_write.slots, to_write.lanes
            if name in self.read_masks:
                found = read_slots(inputs[name])
                read[name], shown[name] = found.slots, found.shown
            elif name not in self.masks or name in self.whole_masks:
                value, layout = inputs[name], layout_of(shape)
                numbers = value if value.dtype.kind == "i" else value.astype(np.float16, copy=False)
                given[name] = numbers if layout is None else laid_out(np.ascontiguousarray(numbers), layout)
        self._running = worker().submit(partial(self._pass, given, written, lanes, read, shown))

    def _pass(self, *numbers: Numbers) -> Mapping[str, NDArray[np.float32]]:
        arrays = [{name: mx.array(value) for name, value in each.items()} for each in numbers]
        outputs, self.states = self._function(*arrays, self.states)
        del arrays
        try:
            mx.eval(outputs, self.states)
        except RuntimeError as error:
            if not self.states:
                raise
            # The old states may be overwritten in part, and the new ones cannot be computed again.
            self._clear()
            raise StateLostError(f"{self.program.source}: {LIBRARY} failed in a pass ({error})") from error
        return {name: np.array(value, copy=False) for name, value in outputs.items()}

    def finish(self) -> Outputs:
        """Wait for the pass; see ShardRunner.

        Raises:
            ArtifactError: MLX refuses the program.
            StateLostError: MLX failed in the pass; the states are zeros again.
        """
        assert self._running is not None
        running, self._running = self._running, None
        with refusing(self.program.source, LIBRARY):
            return MLXOutputs(running.result())

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; see ShardRunner."""
        self.start(inputs)
        outputs = self.finish()
        return {name: outputs.tensor(name) for name in self.program.outputs}

    def read_state(self, name: str) -> Tensor:
        """Return a copy of a state; see ShardRunner."""
        return self._read(name, slice(None))

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self.write_slots(name, 0, value)

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of some slots of a state; see ShardRunner."""
        return self._read(name, slice(first, first + count))

    def _read(self, name: str, slots: slice) -> Tensor:
        def read() -> Tensor:
            parts = [np.array(self.states[entry], copy=False)[:, :, slots] for entry in self.entries[name]]
            return np.concatenate(parts)

        return worker().call(read)

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner."""
        worker().call(partial(self._write, name, first, value))

    def _write(self, name: str, first: int, value: Tensor) -> None:
        entries = self.entries[name]
        for entry, part in zip(entries, np.split(value, len(entries)), strict=True):
            state = self.states.pop(entry)
            state[:, :, first : first + part.shape[2]] = mx.array(np.ascontiguousarray(part, np.float16))
            mx.eval(state)
            self.states[entry] = state

    def close(self) -> None:
        """Release weights and states on MLX's thread, which alone can free a compiled function."""
        worker().call(self._release)

    def _release(self) -> None:
        del self._function
        self.states.clear()
        self.experts = {}
        mx.clear_cache()
