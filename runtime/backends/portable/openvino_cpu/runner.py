"""Run a program with OpenVINO on the CPU. Its states are variables of one compiled model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import ChannelLayout, from_rows, layout_of, row_of, to_rows
from anespec.runtime.backends.backend import ACTIVATIONS_PER_SCALE
from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.portable.arguments import refusing
from anespec.runtime.backends.portable.fusions import fused
from anespec.runtime.backends.portable.openvino_cpu.library import MappedWeights, core
from anespec.runtime.backends.portable.openvino_cpu.model import (
    LANES_OF,
    LIBRARY,
    READ_OF,
    SHOWN_OF,
    SLOTS_OF,
    build_model,
)
from anespec.runtime.backends.portable.openvino_cpu.products import Settings
from anespec.runtime.backends.portable.openvino_cpu.states import States, to_fp16
from anespec.runtime.backends.portable.openvino_cpu.table import block_sizes
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_reads import read_masks, read_slots
from anespec.runtime.backends.portable.slot_writes import (
    masks_read_elsewhere,
    write_masks,
    written_slots,
)
from anespec.runtime.backends.portable.soundness import require_room_for_states
from anespec.runtime.backends.portable.spans import MASK_AXES, STATE_AXIS, slot_axes, with_spans
from anespec.runtime.backends.portable.state_entries import split_states
from anespec.runtime.backends.runner import Channels, Homes, Inputs, Outputs, PoolNames, Tensor

PROBE = np.float16(7)
PROBED_SLOTS = 64

BYTES_OF_A_STATES_NUMBER = 4
"""Bytes of one number of a state: variables are f32."""


@dataclass(frozen=True)
class SharedOutputs:
    """The results of a pass, views of the request's memory; those in `in_rows` are rows [1, T, C]."""

    values: Mapping[str, NDArray[np.float32]]
    in_rows: Mapping[str, ChannelLayout]

    def tensor(self, name: str) -> Tensor:
        """Return a copy of an output; see Outputs."""
        value = to_fp16(self.values[name])
        layout = self.in_rows.get(name)
        return value if layout is None else np.ascontiguousarray(from_rows(value[0], layout))

    def lane(self, name: str, lane: int) -> Channels:
        """Return one lane of an output; see Outputs."""
        value = self.values[name]
        return value[0, lane] if name in self.in_rows else row_of(value, lane)


class OpenVINORunner:
    """A ShardRunner over OpenVINO's CPU plugin, which computes in f32 and keeps int8 weights compressed.

    A pass scatters its T rows into the states in place, and does not copy whole states. OpenVINO does not
    guarantee this, so the constructor tests it. If the test fails, the model is compiled again so that every
    pass copies each state.
    """

    def __init__(self, program: Program, threads: int, pools: tuple[PoolNames, ...] = ()) -> None:
        """Compile the program. Without `pools` every pass attends to all slots.

        Raises:
            ArtifactError: the table lacks an operation, or OpenVINO refuses the program.
        """
        in_use = with_spans(program, pools, [pool.used for pool in pools])
        require_room_for_states(in_use, BYTES_OF_A_STATES_NUMBER)
        # With OpenVINO's default of 32 a pass over 8 rows took 1.5 times as long, and a pass over 4 rows 1.2
        # times; a product's error on random rows is 0.7 % instead of 0.56 %. With more channels than a block
        # of weights the plugin would compute in f32 instead, and a row alone by another kernel than several.
        self._activations_per_scale = min((ACTIVATIONS_PER_SCALE, *block_sizes(program)))
        split = split_states(program)
        self.entries = split.entries
        self.program = fused(split.program)
        self.pools = split.pools(pools)
        self.axes = slot_axes(self.program, self.pools)
        self.masks = write_masks(self.program)
        self.read_masks = read_masks(self.program)
        self.whole_masks = masks_read_elsewhere(self.program)
        self.threads = threads
        self._weights = MappedWeights(self.program.constants.values())
        with refusing(program.source, LIBRARY), self._weights.released_meanwhile():
            self._compile(in_place=True)
            # In the first pass OpenVINO rearranges the weights into memory of its own.
            if not self.program.states:
                self._warm()
            elif not self._writes_in_place():
                self._compile(in_place=False)

    @property
    def takes_homes(self) -> bool:
        """Whether slot numbers can replace all write masks; see ShardRunner."""
        return bool(self.masks) and not self.whole_masks

    @property
    def partial_spans(self) -> bool:
        """Whether all shapes can be adapted to spans; see ShardRunner."""
        return self.axes is not None

    def _compile(self, in_place: bool) -> None:
        program = (
            self.program
            if self.axes is None
            else with_spans(self.program, self.pools, [None] * len(self.pools))
        )
        pools = self.pools if self.axes is not None else ()
        stretching = {name for pool in pools for name in pool.states}
        settings: Settings = {
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": self._activations_per_scale,
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        built = build_model(program, self.axes, in_place, stretching, settings)
        self._read_in_place = program.constants
        self.in_rows = built.in_rows
        self.compiled = core().compile_model(built.model, "CPU", settings)
        self.request = self.compiled.create_infer_request()
        self.states = States(self.request, self.program.states)

    def _warm(self) -> None:
        self.run(self._ones(self.program))

    def _ones(self, program: Program) -> dict[str, Tensor | Homes]:
        """Return inputs of one row, or of the fixed T of the program; the first row writes slot 0.

        If a pass writes consecutive slots, every row writes one. Masks by which slots are read show slot 0.
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
        for name in self.read_masks:
            inputs[name][..., 1:] = 0
        return inputs

    def _writes_in_place(self) -> bool:
        """Return whether a pass that writes the first slots of marked states changes only those slots.

        States that no pass writes must stay as they are.
        """
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
        changing = {op.inputs["input"][0] for op in probe.operations if op.kind == "write_state"}
        for name, shape in probe.states.items():
            state = self.states.read(name, 0, shape[STATE_AXIS])
            held &= name not in changing or bool((state[:, :, 0] != PROBE).any())
            held &= bool((state[:, :, written if name in changing else 0 :] == PROBE).all())
            self.states.write(name, 0, np.zeros(shape, np.float16))
        return held

    def start(self, inputs: Inputs) -> None:
        """Begin a pass; see ShardRunner.

        Raises:
            ValueError: a mask breaks its contract (see slot_writes and slot_reads).
            ArtifactError: OpenVINO fails, or a weight file was truncated.
        """
        self._weights.require_whole(self.program.source)
        given: dict[str, NDArray[Any]] = {}
        for name, shape in self.program.inputs.items():
            if name in self.masks:
                written = written_slots(inputs[name])
                given[SLOTS_OF + name], given[LANES_OF + name] = written.slots, written.lanes
            if name in self.read_masks:
                read = read_slots(inputs[name])
                given[READ_OF + name], given[SHOWN_OF + name] = read.slots, read.shown
            elif name not in self.masks or name in self.whole_masks:
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
        """Return a copy of a state; see ShardRunner."""
        return self.read_slots(name, 0, self.states.slots(self.entries[name][0]))

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self.write_slots(name, 0, value)

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of some slots of a state; see ShardRunner."""
        parts = [self.states.read(entry, first, count) for entry in self.entries[name]]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner."""
        entries = self.entries[name]
        for entry, part in zip(entries, np.split(value, len(entries)), strict=True):
            self.states.write(entry, first, part)

    def close(self) -> None:
        """Release the compiled model, after the objects that use it."""
        del self.states
        del self.request
        del self.compiled
        del self._read_in_place
        del self._weights
