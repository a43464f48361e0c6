"""Build the OpenVINO model of a program. Its states are variables with as many slots as a pass reads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from anespec.manifests.channel_layout import CHANNELS_AXIS, ChannelLayout, layout_of
from anespec.runtime.backends.portable.arguments import Arguments, unknown_operation
from anespec.runtime.backends.portable.experts import MIXTURE
from anespec.runtime.backends.portable.openvino_cpu.experts import mixture
from anespec.runtime.backends.portable.openvino_cpu.library import (
    Model,
    Node,
    Output,
    PartialShape,
    Rows,
    Type,
    Value,
    Values,
    constant,
    op,
    opset15,
    out,
    planar,
)
from anespec.runtime.backends.portable.openvino_cpu.products import Settings
from anespec.runtime.backends.portable.openvino_cpu.table import TABLE, follow_slots, slot_read, slot_write
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_reads import SLOT_READ, read_masks
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE, masks_read_elsewhere, write_masks
from anespec.runtime.backends.portable.spans import STATE_AXIS, SlotAxes

LIBRARY = "OpenVINO"

SLOTS_OF, LANES_OF = "slots of ", "lanes of "
"""Prefixes to a write mask's name: the names of the two inputs that replace the mask."""

READ_OF, SHOWN_OF = "slots read by ", "rows shown by "
"""The same for a mask by which slots are read."""


@dataclass(frozen=True)
class Slots:
    """The slots to write, and the lanes whose rows go there; each i32 [T]."""

    slots: Output
    lanes: Output


@dataclass(frozen=True)
class Shown:
    """The slots to read, i32 [rows], and 1 or 0 for each row, f32 [1, 1, rows, 1] (see ReadSlots)."""

    slots: Output
    shown: Output


@dataclass(frozen=True)
class BuiltModel:
    """A model. `in_rows` are the outputs that it returns as rows [1, T, C], with the program's layouts."""

    model: Model
    in_rows: Mapping[str, ChannelLayout]


class _Parameters:
    """The model's parameters, in order."""

    def __init__(self) -> None:
        self.nodes: list[op.Parameter] = []

    def add(self, name: str, shape: tuple[int | None, ...], kind: Type = Type.f32) -> Output:
        """Add a parameter with this name and return its output; a dimension of None may vary."""
        size = PartialShape([-1 if dimension is None else dimension for dimension in shape])
        parameter = opset15.parameter(size, kind, name)
        out(parameter).set_names({name})
        self.nodes.append(parameter)
        return out(parameter)


def build_model(
    program: Program,
    axes: SlotAxes | None,
    in_place: bool,
    stretching: Collection[str],
    settings: Settings,
) -> BuiltModel:
    """Build the OpenVINO model of `program`, whose slot writes and reads are fused and which is pruned.

    `axes` are the reshapes to adapt to the number of slots of the states that are `stretching`; None if that
    number is fixed. With `in_place`, a variable is assigned the value that was read from it: OpenVINO then
    keeps one buffer for it, and the scatter, the only other reader of the buffer, works in place. The plugin
    will compile the model with `settings`.

    Raises:
        ArtifactError: the table lacks an operation.
    """
    known = Values(program.constants)
    parameters = _Parameters()
    masks = write_masks(program)
    as_numbers = masks - masks_read_elsewhere(program)
    writes = {
        name: Slots(*(parameters.add(which + name, (None,), Type.i32) for which in (SLOTS_OF, LANES_OF)))
        for name in sorted(masks)
    }
    reads = {
        name: Shown(
            parameters.add(READ_OF + name, (None,), Type.i32),
            parameters.add(SHOWN_OF + name, (1, 1, None, 1)),
        )
        for name in sorted(read_masks(program))
    }
    for name, shape in program.inputs.items():
        if name in as_numbers or name in reads:
            continue
        if (layout := layout_of(shape)) is not None:
            in_rows = (1, shape[layout.rows_axis], shape[CHANNELS_AXIS])
            known[name] = Rows(parameters.add(name, in_rows), layout)
        else:
            known[name] = parameters.add(name, shape)
    variables = {name: _variable(name, shape, name in stretching) for name, shape in program.states.items()}
    current: dict[str, Value] = {name: out(variable) for name, variable in variables.items()}
    for operation in program.operations:
        arguments = Arguments(operation, known, program.constants, program.source)
        if operation.kind == "read_state":
            known[operation.outputs[0]] = current[arguments.state()]
        elif operation.kind == "write_state":
            current[arguments.state()] = arguments.value("data")
        elif operation.kind == SLOT_WRITE:
            write = writes[arguments.state("mask")]
            known[operation.outputs[0]] = slot_write(arguments, write.slots, write.lanes)
        elif operation.kind == SLOT_READ:
            read = reads[arguments.state("mask")]
            known[operation.outputs[0]] = slot_read(arguments, read.slots, read.shown)
        elif operation.kind == MIXTURE:
            known[operation.outputs[0]] = mixture(operation, known, program, settings)
        elif axes is not None and operation.name in axes:
            known[operation.outputs[0]] = follow_slots(arguments, axes[operation.name])
        elif operation.kind in TABLE:
            result = TABLE[operation.kind](arguments)
            values = result if isinstance(result, tuple) else (result,)
            known.update(zip(operation.outputs, values, strict=True))
        else:
            raise unknown_operation(operation, program.source, LIBRARY)
    sinks = [
        opset15.assign(variable if in_place else planar(current[name]).get_node(), name)
        for name, variable in variables.items()
    ]
    results, layouts = [], dict[str, ChannelLayout]()
    for name in program.outputs:
        value = known[name]
        results.append(opset15.result(value.output if isinstance(value, Rows) else value))
        if isinstance(value, Rows):
            layouts[name] = value.layout
    return BuiltModel(Model(results, sinks, parameters.nodes, "shards"), layouts)


def _variable(name: str, shape: tuple[int, ...], stretches: bool) -> Node:
    """Return a variable of zeros. If it `stretches`, it may have any number of slots, one at first."""
    if not stretches:
        return opset15.read_value(
            constant(np.zeros(shape, np.float32)), name, Type.f32, PartialShape(list(shape))
        )
    one, any_number = ([*shape[:STATE_AXIS], slots, *shape[STATE_AXIS + 1 :]] for slots in (1, -1))
    return opset15.read_value(constant(np.zeros(one, np.float32)), name, Type.f32, PartialShape(any_number))
