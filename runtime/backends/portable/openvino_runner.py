"""Runs a program with OpenVINO on the CPU; states are variables of one compiled model."""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.arguments import Arguments, refusing, unknown_operation
from anespec.runtime.backends.portable.mapped_weights import MappedWeights
from anespec.runtime.backends.portable.openvino_layout import Value, constant, out, planar
from anespec.runtime.backends.portable.openvino_library import (
    Core,
    Model,
    PartialShape,
    Type,
    opset15,
)
from anespec.runtime.backends.portable.openvino_library import Tensor as SharedTensor
from anespec.runtime.backends.portable.openvino_table import TABLE
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_writes import fuse_slot_writes, is_legal_mask, write_masks
from anespec.runtime.backends.portable.soundness import require_room_for_states
from anespec.runtime.backends.runner import Feed, Tensor

LIBRARY = "OpenVINO"
PROBE = np.float16(7)

BYTES_OF_A_STATES_NUMBER = 8
"""f32, in the variable and in the constant that it starts as."""


@cache
def _core() -> Core:
    """The process's one Core: with it go the CPU plugin's code and threads, so no model outlives it."""
    return Core()


class OpenVINORunner:
    """A ShardRunner over OpenVINO's CPU plugin, computing in f32 with int8 weights left compressed.

    A state's slots are scattered into in place, so that a pass moves T rows and not the whole state.
    OpenVINO gives no promise of that, so it is probed once at the start; where the probe fails, the
    model is compiled again with a whole copy of every state per pass.
    """

    def __init__(self, program: Program, threads: int) -> None:
        """Compile.

        Raises:
            ArtifactError: an operation is not in the table, or OpenVINO refuses the program.
        """
        require_room_for_states(program, BYTES_OF_A_STATES_NUMBER)
        self.program = fuse_slot_writes(program)
        self.masks = write_masks(self.program)
        self.threads = threads
        weights = MappedWeights(self.program.constants.values())
        with refusing(program.source, LIBRARY), weights.released_meanwhile():
            self._compile(in_place=True)
            # The first pass makes OpenVINO rearrange the weights for itself, and read them for the last time.
            if not self.program.states:
                self._warm()
            elif not self._writes_in_place():
                self._compile(in_place=False)
                self._clear_states()

    def _compile(self, in_place: bool) -> None:
        model = build_model(self.program, in_place)
        options = {
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.compiled = _core().compile_model(model, "CPU", options)
        self.request = self.compiled.create_infer_request()
        self.states = {state.name: state for state in self.request.query_state()}

    def _warm(self) -> None:
        inputs = self.program.inputs.items()
        self.run({name: np.ones([size or 1 for size in shape], np.float16) for name, shape in inputs})

    def _clear_states(self) -> None:
        for name, shape in self.program.states.items():
            self.write_state(name, np.zeros(shape, np.float16))

    def _writes_in_place(self) -> bool:
        """Write slot 0 of marked states: it must change and the others must not."""
        for name, shape in self.program.states.items():
            self.write_state(name, np.full(shape, PROBE))
        feed = {
            name: np.ones([size or 1 for size in shape], np.float16)
            for name, shape in self.program.inputs.items()
        }
        for name in self.masks:
            feed[name][:, :, 1:] = 0
        self.run(feed)
        held = True
        for name in self.program.states:
            state = self.read_state(name)
            held &= bool((state[:, :, 0] != PROBE).any() and (state[:, :, 1:] == PROBE).all())
        self._clear_states()
        return held

    def run(self, feed: Feed) -> dict[str, Tensor]:
        """Execute once; see ShardRunner.

        Raises:
            ValueError: a write mask breaks its contract (see slot_writes).
            ArtifactError: OpenVINO fails.
        """
        for name in self.masks:
            if not is_legal_mask(feed[name]):
                raise ValueError(f"{name} must write at least one slot, each row one slot of its own")
        inputs = {name: np.asarray(feed[name], np.float32) for name in self.program.inputs}
        with refusing(self.program.source, LIBRARY):
            results = self.request.infer(inputs, share_inputs=True, share_outputs=True)
        return {name: _to_fp16(np.asarray(results[i])) for i, name in enumerate(self.program.outputs)}

    def read_state(self, name: str) -> Tensor:
        """A copy of a state; every value in it was rounded to fp16 when written. See ShardRunner."""
        return _to_fp16(np.asarray(self.states[name].state.data))

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self.states[name].state = SharedTensor(value.astype(np.float32))

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """A copy of some slots of a state; see ShardRunner."""
        return _to_fp16(self.states[name].state.data[:, :, first : first + count])

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner.

        OpenVINO hands out a view of the variable's own memory, which is written through; should it
        ever hand out a copy, the whole state is written back.
        """
        state = self.states[name].state.data
        slots = slice(first, first + value.shape[2])
        state[:, :, slots] = value
        if not np.shares_memory(state, self.states[name].state.data):
            self.states[name].state = SharedTensor(state)

    def close(self) -> None:
        """Release the compiled model, after everything that was made of it."""
        self.states.clear()
        del self.request
        del self.compiled


class _Values(Mapping[str, Value]):
    """Values by name, as far as nodes were made; a constant becomes one when it is first asked for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self.nodes:
            self.nodes[name] = constant(self.program.constants[name])
        return self.nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def _to_fp16(values: NDArray[np.float32]) -> Tensor:
    """A copy in fp16. What is beyond its range becomes infinite, which the gates and the sampler find."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def build_model(program: Program, in_place: bool) -> Model:
    """An OpenVINO model of `program`.

    With `in_place`, a variable is assigned what was read from it: OpenVINO then keeps one buffer for
    it, and the scatter that is the buffer's only other reader works in that buffer.

    Raises:
        ArtifactError: an operation is not in the table.
    """
    known = _Values(program)
    parameters = []
    for name, shape in program.inputs.items():
        size = PartialShape([-1 if dimension is None else dimension for dimension in shape])
        parameter = opset15.parameter(size, Type.f32, name)
        out(parameter).set_names({name})
        parameters.append(parameter)
        known.nodes[name] = out(parameter)
    variables = {
        name: opset15.read_value(
            constant(np.zeros(shape, np.float32)), name, Type.f32, PartialShape(list(shape))
        )
        for name, shape in program.states.items()
    }
    current: dict[str, Value] = {name: out(variable) for name, variable in variables.items()}
    for operation in program.operations:
        arguments = Arguments(operation, known, program.constants, program.source)
        if operation.kind == "read_state":
            known.nodes[operation.outputs[0]] = current[arguments.state()]
        elif operation.kind == "write_state":
            current[arguments.state()] = arguments.value("data")
        elif operation.kind in TABLE:
            result = TABLE[operation.kind](arguments)
            values = result if isinstance(result, tuple) else (result,)
            known.nodes.update(zip(operation.outputs, values, strict=True))
        else:
            raise unknown_operation(operation, program.source, LIBRARY)
    sinks = [
        opset15.assign(variable if in_place else planar(current[name]).get_node(), name)
        for name, variable in variables.items()
    ]
    results = [opset15.result(planar(known[name])) for name in program.outputs]
    return Model(results, sinks, parameters, "shards")
