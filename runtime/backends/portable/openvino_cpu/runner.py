"""Runs a program with OpenVINO on the CPU; states are variables of one compiled model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import ChannelLayout, from_rows, layout_of, row_of, to_rows
from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.portable.arguments import refusing
from anespec.runtime.backends.portable.fused_norms import fuse_norms
from anespec.runtime.backends.portable.openvino_cpu.library import Core, MappedWeights
from anespec.runtime.backends.portable.openvino_cpu.model import (
    LANES_OF,
    LIBRARY,
    SLOTS_OF,
    build_model,
)
from anespec.runtime.backends.portable.openvino_cpu.states import States, split_states, to_fp16
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_writes import (
    fuse_slot_writes,
    masks_read_elsewhere,
    pruned,
    write_masks,
)
from anespec.runtime.backends.portable.soundness import require_room_for_states
from anespec.runtime.backends.portable.spans import MASK_AXES, STATE_AXIS, slot_axes, with_spans
from anespec.runtime.backends.runner import Channels, Homes, Inputs, Outputs, PoolNames, Tensor

PROBE = np.float16(7)
PROBED_SLOTS = 64

ACTIVATIONS_PER_SCALE = 128
"""Channels of a row that are rounded to int8 with one scale. With the library's 32 a pass over 8 rows took
1.5 times as long, one over 4 rows 1.2 times; a product's error on random rows is 0.7 % instead of 0.56 %."""

BYTES_OF_A_STATES_NUMBER = 4
"""f32, in the variable."""


@cache
def _core() -> Core:
    """The process's one Core: with it go the CPU plugin's code and threads, so no model outlives it."""
    return Core()


@dataclass(frozen=True)
class SharedOutputs:
    """Views of the request's own memory; some channel tensors are rows [1, T, C] there."""

    values: Mapping[str, NDArray[np.float32]]
    in_rows: Mapping[str, ChannelLayout]

    def tensor(self, name: str) -> Tensor:
        """A copy of an output; see Outputs."""
        value = to_fp16(self.values[name])
        layout = self.in_rows.get(name)
        return value if layout is None else np.ascontiguousarray(from_rows(value[0], layout))

    def lane(self, name: str, lane: int) -> Channels:
        """One lane of an output; see Outputs."""
        value = self.values[name]
        return value[0, lane] if name in self.in_rows else row_of(value, lane)


class OpenVINORunner:
    """A ShardRunner over OpenVINO's CPU plugin, computing in f32 with int8 weights left compressed.

    A state's slots are scattered into in place, so that a pass moves T rows and not the whole state.
    OpenVINO gives no promise of that, so it is probed once at the start; where the probe fails, the
    model is compiled again with a whole copy of every state per pass.
    """

    def __init__(self, program: Program, threads: int, pools: tuple[PoolNames, ...] = ()) -> None:
        """Compile. Without `pools` every pass looks at all slots.

        Raises:
            ArtifactError: an operation is not in the table, or OpenVINO refuses the program.
        """
        in_use = with_spans(program, pools, [pool.used for pool in pools])
        require_room_for_states(in_use, BYTES_OF_A_STATES_NUMBER)
        split = split_states(program)
        self.entries = split.entries
        self.program = pruned(fuse_norms(fuse_slot_writes(split.program)))
        self.pools = split.pools(pools)
        self.axes = slot_axes(self.program, self.pools)
        self.masks = write_masks(self.program)
        self.whole_masks = masks_read_elsewhere(self.program)
        self.threads = threads
        self._weights = MappedWeights(self.program.constants.values())
        with refusing(program.source, LIBRARY), self._weights.released_meanwhile():
            self._compile(in_place=True)
            # The first pass makes OpenVINO rearrange the weights for itself, and read them for the last time.
            if not self.program.states:
                self._warm()
            elif not self._writes_in_place():
                self._compile(in_place=False)

    @property
    def takes_homes(self) -> bool:
        """Whether no operation reads a write mask as such; see ShardRunner."""
        return bool(self.masks) and not self.whole_masks

    @property
    def partial_spans(self) -> bool:
        """Whether all shapes can follow; see ShardRunner."""
        return self.axes is not None

    def _compile(self, in_place: bool) -> None:
        program = (
            self.program
            if self.axes is None
            else with_spans(self.program, self.pools, [None] * len(self.pools))
        )
        built = build_model(program, self.axes, in_place)
        self._read_in_place = program.constants
        options = {
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": ACTIVATIONS_PER_SCALE,
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.in_rows = built.in_rows
        self.compiled = _core().compile_model(built.model, "CPU", options)
        self.request = self.compiled.create_infer_request()
        self.states = States(self.request, self.program.states)

    def _warm(self) -> None:
        self.run(self._ones(self.program))

    def _ones(self, program: Program) -> dict[str, Tensor | Homes]:
        """Inputs of one row, or of as many as the program takes, of which the first writes slot 0.

        Where rows are written side by side, all of them write.
        """
        inputs: dict[str, Tensor | Homes] = {
            name: np.ones([size or 1 for size in shape], np.float16) for name, shape in program.inputs.items()
        }
        for name in self.masks:
            if inputs[name].ndim == 1:
                inputs[name] = np.arange(len(inputs[name]), dtype=np.int32)
            else:
                inputs[name][...] = 0
                inputs[name][:, :, 0, 0] = 1
        return inputs

    def _writes_in_place(self) -> bool:
        """Return whether a write to the first slots of marked states (few slots) changes those alone."""
        probe = self.program
        if self.axes is not None:
            probe = with_spans(probe, self.pools, [min(pool.slots, PROBED_SLOTS) for pool in self.pools])
        for name, shape in probe.states.items():
            self.states.stretch(name, shape[STATE_AXIS])
            self.states.write(name, 0, np.full(shape, PROBE))
        ones = self._ones(probe)
        written = max((1 + int(homes_of(ones[name]).max()) for name in self.masks), default=1)
        self.run(ones)
        held = True
        for name, shape in probe.states.items():
            state = self.states.read(name, 0, shape[STATE_AXIS])
            held &= bool((state[:, :, 0] != PROBE).any() and (state[:, :, written:] == PROBE).all())
            self.states.write(name, 0, np.zeros(shape, np.float16))
        return held

    def start(self, inputs: Inputs) -> None:
        """Begin a pass; see ShardRunner.

        Raises:
            ValueError: a write mask breaks its contract (see slot_writes).
            ArtifactError: OpenVINO fails, or the weights' files were cut short.
        """
        self._weights.require_whole(self.program.source)
        given: dict[str, NDArray[Any]] = {}
        for name, shape in self.program.inputs.items():
            if name in self.masks:
                homes = homes_of(inputs[name])
                writers = np.flatnonzero(homes >= 0)
                lanes = np.where(homes >= 0, np.arange(len(homes)), writers[0]).astype(np.int32)
                given[SLOTS_OF + name], given[LANES_OF + name] = homes[lanes], lanes
            if name not in self.masks or name in self.whole_masks:
                value = inputs[name]
                turned = value if layout_of(shape) is None else to_rows(value)[None]
                given[name] = np.ascontiguousarray(turned, np.float32)
        with refusing(self.program.source, LIBRARY):
            self._stretch(inputs)
            self._given = given
            self.request.start_async(given, share_inputs=True)

    def _stretch(self, inputs: Inputs) -> None:
        spans = {
            name: inputs[pool.mask_input].shape[MASK_AXES[0]]
            for pool in (self.pools if self.axes is not None else ())
            for name in pool.states
        }
        for name in self.program.states:
            self.states.stretch(name, spans.get(name, self.states.slots(name)))

    def finish(self) -> Outputs:
        """Wait for the pass; see ShardRunner.

        Raises:
            ArtifactError: OpenVINO fails.
        """
        with refusing(self.program.source, LIBRARY):
            self.request.wait()
            values = {
                name: self.request.get_output_tensor(index).data
                for index, name in enumerate(self.program.outputs)
            }
        return SharedOutputs(values, self.in_rows)

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; see ShardRunner."""
        self.start(inputs)
        outputs = self.finish()
        return {name: outputs.tensor(name) for name in self.program.outputs}

    def read_state(self, name: str) -> Tensor:
        """A copy of a state; see ShardRunner."""
        return self.read_slots(name, 0, self.states.slots(self.entries[name][0]))

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self.write_slots(name, 0, value)

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """A copy of some slots of a state; see ShardRunner."""
        parts = [self.states.read(entry, first, count) for entry in self.entries[name]]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner."""
        entries = self.entries[name]
        for entry, part in zip(entries, np.split(value, len(entries)), strict=True):
            self.states.write(entry, first, part)

    def close(self) -> None:
        """Release the compiled model, after everything that was made of it."""
        del self.states
        del self.request
        del self.compiled
        del self._read_in_place
        del self._weights
