"""Decide whether a program can attend to only the first slots of its pools, and which reshapes to adapt.

The masks and states of such a pass are shorter. Most operations work with any size, but a reshape contains
sizes, and those that are numbers of slots must be adapted. To find them, shapes are traced both with all
slots and with fewer: an axis whose size differs is an axis of slots. In a reshape's result, it is the axis
with the same size and stride.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.experts import MIXTURE
from anespec.runtime.backends.portable.fused_norms import RMS_NORM
from anespec.runtime.backends.portable.program import Constant, Operation, Program
from anespec.runtime.backends.portable.shape_table import Shape, result_shapes
from anespec.runtime.backends.portable.slot_reads import SLOT_READ
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE
from anespec.runtime.backends.portable.soundness import ShapesSoFar
from anespec.runtime.backends.runner import PoolNames
from anespec.system.errors import ArtifactError

FEWER = 3 / 4
"""The fraction of a pool's slots for the second trace of shapes; the smallest pools have 64 slots."""

LANES_TRIED = 5
"""The T for which shapes are traced; it is not a usual number of heads."""

MASK_AXES = 3, 2
"""The axes of slots in attn_mask [1, 1, T, S] and in kv_write_mask [1, 1, S, T]; kv_position [T] has none."""

STATE_AXIS = 2
"""The axis of slots in a state [1, n_kv, S, head_dim]."""


@dataclass(frozen=True)
class SlotAxis:
    """The axis of slots in a reshape's input (`before`) and in its result (`after`)."""

    before: int
    after: int


SlotAxes = Mapping[str, SlotAxis]
"""The reshapes to adapt, by name."""


def slot_axes(program: Program, pools: Sequence[PoolNames]) -> SlotAxes | None:
    """Return the reshapes to adapt to spans; None if an operation cannot be adapted."""
    fewer = [int(pool.slots * FEWER) for pool in pools]
    if not pools or not _are_of_slots(program, pools) or min(fewer) < 1:
        return None
    cut = with_spans(program, pools, fewer)
    whole, part = ShapesSoFar(program, LANES_TRIED), ShapesSoFar(cut, LANES_TRIED)
    found: dict[str, SlotAxis] = {}
    try:
        for operation in program.operations:
            constants: Mapping[str, Constant] = program.constants
            if operation.kind == "reshape":
                x, cut_x = (shapes[operation.inputs["x"][0]] for shapes in (whole, part))
                axes = [axis for axis, sizes in enumerate(zip(x, cut_x, strict=True)) if len(set(sizes)) > 1]
                if axes:
                    (after,) = _shapes(operation, program, program.constants, whole)
                    found[operation.name] = _kept(x, after, axes)
                    constants = followed(operation, constants, found[operation.name], cut_x)
            part.add(operation, _shapes(operation, cut, constants, part))
            whole.add(operation, _shapes(operation, program, program.constants, whole))
    except (ArtifactError, _CannotFollowError):
        return None
    same_outputs = all(whole[name] == part[name] for name in program.outputs)
    return found if same_outputs else None


class _CannotFollowError(Exception):
    """An operation mixes the axis of slots with another axis, or is in no table."""


def _shapes(
    operation: Operation, program: Program, constants: Mapping[str, Constant], known: ShapesSoFar
) -> tuple[Shape, ...]:
    if operation.kind == SLOT_WRITE:
        return (known[operation.inputs["state"][0]],)
    if operation.kind in (RMS_NORM, MIXTURE):
        return (known[operation.inputs["x"][0]],)
    if operation.kind == SLOT_READ:
        _, taps, lanes, _ = known[operation.inputs["mask"][0]]
        batch, heads, _, width = known[operation.inputs["slots"][0]]
        return ((batch, heads, taps * lanes, width),)
    found = result_shapes(Arguments(operation, known, constants, program.source), program.states)
    if found is None:
        raise _CannotFollowError
    return found


def _kept(before: Shape, after: Shape, axes: Sequence[int]) -> SlotAxis:
    if len(axes) == 1:
        for axis, size in enumerate(after):
            stride = prod(before[axes[0] + 1 :])
            if size == before[axes[0]] and prod(after[axis + 1 :]) == stride:
                return SlotAxis(axes[0], axis)
    raise _CannotFollowError


def followed(
    operation: Operation, constants: Mapping[str, Constant], axis: SlotAxis, x: Shape
) -> Mapping[str, Constant]:
    """Return `constants` with a reshape's shape changed to the number of slots of its input `x`."""
    name = operation.inputs["shape"][0]
    shape = np.array(constants[name])
    shape[axis.after] = x[axis.before]
    return {**constants, name: shape}


def with_spans(program: Program, pools: Sequence[PoolNames], spans: Sequence[int | None]) -> Program:
    """Return the program with masks and states of `spans` slots, by pool; None may vary, like T."""
    inputs, states = dict(program.inputs), dict(program.states)
    for pool, span in zip(pools, spans, strict=True):
        for name, axis in zip((pool.mask_input, pool.write_input), MASK_AXES, strict=True):
            if name in inputs and len(inputs[name]) > 1:
                inputs[name] = (*inputs[name][:axis], span, *inputs[name][axis + 1 :])
        for name in pool.states:
            if name in inputs:
                inputs[name] = (*inputs[name][:STATE_AXIS], span, *inputs[name][STATE_AXIS + 1 :])
            else:
                shape = states[name]
                states[name] = (*shape[:STATE_AXIS], span or pool.slots, *shape[STATE_AXIS + 1 :])
    return replace(program, inputs=inputs, states=states)


def _are_of_slots(program: Program, pools: Sequence[PoolNames]) -> bool:
    """Return whether masks and states have their pool's slots on the expected axes."""
    masks = [
        (program.inputs[name], axis, pool.slots)
        for pool in pools
        for name, axis in zip((pool.mask_input, pool.write_input), MASK_AXES, strict=True)
        if name in program.inputs and len(program.inputs[name]) > 1
    ]
    held = {**program.inputs, **program.states}
    states = [(held[name], STATE_AXIS, pool.slots) for pool in pools for name in pool.states]
    return all(len(shape) == 4 and shape[axis] == slots for shape, axis, slots in (*masks, *states))
