"""Describe a whole pass of a program as one function of MLX arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from anespec.runtime.backends.portable.arguments import Arguments, unknown_operation
from anespec.runtime.backends.portable.experts import MIXTURE
from anespec.runtime.backends.portable.mil_package import unpacked
from anespec.runtime.backends.portable.mlx_gpu.experts import (
    Experts,
    run_all_experts,
    run_used_experts,
    stacked_experts,
)
from anespec.runtime.backends.portable.mlx_gpu.table import (
    STORED,
    TABLE,
    Value,
    slot_read,
    slot_write,
    tensor,
    wide,
)
from anespec.runtime.backends.portable.mlx_gpu.weights import of_numbers
from anespec.runtime.backends.portable.program import Constant, Operation, Program
from anespec.runtime.backends.portable.slot_reads import SLOT_READ
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE
from anespec.runtime.backends.portable.spans import MASK_AXES, STATE_AXIS, SlotAxes, followed
from anespec.runtime.backends.runner import PoolNames

LIBRARY = "MLX"

Arrays = dict[str, mx.array]


OF_A_PASS = frozenset({"read_state", "write_state", SLOT_WRITE, SLOT_READ, MIXTURE})
"""The operations that need more of a pass than the values of their inputs."""


@dataclass(frozen=True)
class Slots:
    """The slots that a pass writes and reads, by the names of masks.

    `written` are the slots to write, and `lanes` the lanes whose rows go there, int32 [T]. `read` are the
    slots to read, int32 [rows], and `shown` is 1 or 0 for each of these rows, fp32 [1, 1, rows, 1].
    """

    written: Arrays
    lanes: Arrays
    read: Arrays
    shown: Arrays


class PassGraph:
    """A program whose slot writes, slot reads, norms and mixtures are fused, and which is pruned.

    Weights are made once, by `__init__`, and every pass uses the same arrays.
    """

    def __init__(self, program: Program, pools: tuple[PoolNames, ...], axes: SlotAxes) -> None:
        """Make the weights; `pools` are those whose states a pass may read in part, with `axes` to adapt.

        Raises:
            ArtifactError: the table lacks an operation, or a weight is not supported.
        """
        self.pools = pools
        self.axes = axes
        self.experts: dict[str, Experts] = {}
        self.stored = Stored(program)
        self._make_weights(program, program.operations)
        self.program = without_weights(program)
        self.stored.constants = self.program.constants

    def _make_weights(self, program: Program, operations: Iterable[Operation]) -> None:
        stored = self.stored
        for operation in operations:
            if operation.kind == MIXTURE:
                self._make_experts(program, operation)
            elif operation.kind in STORED:
                a = Arguments[Value](operation, stored, program.constants, program.source)
                stored[operation.outputs[0]] = STORED[operation.kind](a)
            elif operation.kind == "conv":
                (name,) = operation.inputs["weight"]
                if isinstance(value := program.constants.get(name), np.ndarray):
                    stored[name] = of_numbers(value)
            elif operation.kind not in TABLE and operation.kind not in OF_A_PASS:
                raise unknown_operation(operation, program.source, LIBRARY)

    def _make_experts(self, program: Program, mixture: Operation) -> None:
        for block in mixture.blocks:
            self._make_weights(program, block)
        found = stacked_experts(mixture, program, self.stored)
        if found is None:
            return
        self.experts[mixture.name] = found
        for name in (
            name for block in mixture.blocks for own in block for name in own.inputs.get("weight", ())
        ):
            self.stored.pop(name, None)

    def __call__(
        self, inputs: Arrays, written: Arrays, lanes: Arrays, read: Arrays, shown: Arrays, states: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Return a pass's outputs and new states, by name; nothing is computed yet.

        The arguments between `inputs` and `states` are those of `Slots`.
        """
        return _Pass(self, inputs, Slots(written, lanes, read, shown), states).run()


class Stored(dict[str, Value]):
    """The weights and other constants of a program, by name. Other constants become arrays when needed."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.constants = program.constants

    def __missing__(self, name: str) -> Value:
        value = self.constants[name]
        if isinstance(value, str):
            raise KeyError(name)
        found = self[name] = mx.array(unpacked(value))
        mx.eval(found)
        return found


def without_weights(program: Program) -> Program:
    """Return the program without the operations that make weights, and without the constants of weights.

    So the weight files are not mapped any longer than it takes to copy them.
    """
    operations = [
        each
        for operation in program.operations
        for each in (operation, *(own for block in operation.blocks for own in block))
    ]
    gone = {name for each in operations if each.kind in STORED for name in each.named_inputs()}
    gone |= {name for each in operations if each.kind == "conv" for name in each.inputs["weight"]}
    return replace(
        program,
        operations=tuple(each for each in program.operations if each.kind not in STORED),
        constants={name: value for name, value in program.constants.items() if name not in gone},
    )


class _Known(dict[str, Value]):
    """The values of a pass so far, in front of what is stored."""

    def __init__(self, stored: Stored) -> None:
        super().__init__()
        self._stored = stored

    def __missing__(self, name: str) -> Value:
        return self._stored[name]


class _Pass:
    """One description of a pass, for the shapes of its inputs."""

    def __init__(self, graph: PassGraph, inputs: Arrays, slots: Slots, states: Arrays) -> None:
        self._graph = graph
        self._slots = slots
        self._states = dict(states)
        self._known = _Known(graph.stored)
        self._known.update({name: wide(value) for name, value in inputs.items()})
        # A pool whose mask became slot numbers is read by these alone, from whole states.
        self._spans = {
            name: inputs[pool.mask_input].shape[MASK_AXES[0]]
            for pool in graph.pools
            if pool.mask_input in inputs
            for name in pool.states
        }
        self._held_by: dict[str, str] = {}
        """The states whose values these are, by the values' names."""

    def run(self) -> tuple[Arrays, Arrays]:
        known = self._known
        for operation in self._graph.program.operations:
            if operation.kind == "write_state":
                self._write(self._described(operation))
                continue
            found = self._result(operation)
            results = found if isinstance(found, tuple) else (found,)
            known.update(zip(operation.outputs, results, strict=True))
        outputs = {name: tensor_named(known, name) for name in self._graph.program.outputs}
        return outputs, self._states

    def _described(self, operation: Operation) -> Arguments[Value]:
        program = self._graph.program
        constants: Mapping[str, Constant] = program.constants
        if (axis := self._graph.axes.get(operation.name)) is not None:
            x = tensor_named(self._known, operation.inputs["x"][0])
            constants = followed(operation, constants, axis, x.shape)
        return Arguments(operation, self._known, constants, program.source)

    def _result(self, operation: Operation) -> mx.array | tuple[mx.array, ...]:
        a = self._described(operation)
        match operation.kind:
            case "read_state":
                self._held_by[operation.outputs[0]] = a.state()
                return self._in_span(a.state())
            case kind if kind == SLOT_WRITE:
                return self._slot_write(a)
            case kind if kind == SLOT_READ:
                mask = a.state("mask")
                return slot_read(tensor(a, "slots"), self._slots.read[mask], self._slots.shown[mask])
            case kind if kind == MIXTURE:
                if operation.name in self._graph.experts:
                    return run_used_experts(
                        operation, self._graph.experts[operation.name], self._described, self._known
                    )
                return run_all_experts(operation, self._described, self._known)
            case kind:
                return TABLE[kind](a)

    def _slot_write(self, a: Arguments[Value]) -> mx.array:
        """Write rows into the slots of a whole state, so that MLX can do so in place; return its span."""
        mask, held = a.state("mask"), a.state("state")
        new = mx.take(tensor(a, "new"), self._slots.lanes[mask], axis=STATE_AXIS)
        state = self._held_by.get(held)
        if state is None:
            return slot_write(tensor(a, "state"), new, self._slots.written[mask])
        self._states[state] = slot_write(self._states[state], new, self._slots.written[mask])
        self._held_by[a.operation.outputs[0]] = state
        return self._in_span(state)

    def _write(self, a: Arguments[Value]) -> None:
        """Replace a state's slots in the span, unless a slot write has done so."""
        state, (data,) = a.state(), a.operation.inputs["data"]
        if self._held_by.get(data) == state:
            return
        value = self._known[data] = tensor(a, "data").astype(mx.float16)
        whole = self._states[state]
        if value.shape == whole.shape:
            self._states[state] = value
        else:
            self._states[state] = mx.slice_update(whole, value, mx.array([0]), (STATE_AXIS,))

    def _in_span(self, state: str) -> mx.array:
        whole = self._states[state]
        span = self._spans.get(state, whole.shape[STATE_AXIS])
        return whole if span == whole.shape[STATE_AXIS] else whole[:, :, :span]


def tensor_named(known: Mapping[str, Value], name: str) -> mx.array:
    """Return a value that a pass has computed."""
    value = known[name]
    assert isinstance(value, mx.array), name
    return value
