"""Recognises the graph's mask blend and names it as what it is: a write of T rows into slots.

`state * (1 - sum_t mask) + mask @ new` touches all S slots to change T of them, because a scatter
leaves the Neural Engine. A library that has a cheap scatter may run the write as one: the result is
the same, bit for bit but for the sign of a zero, whenever each column of the mask is one-hot or zero,
no two columns share a slot, and the state is finite. That is the contract of kv_write_mask (DESIGN.md
section 4).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anespec.runtime.backends.portable.program import Operation, Program

SLOT_WRITE = "slot_write"
"""The operation put in the blend's place: inputs `state` (what was read of one, or an input in its place),
`mask` [1, 1, S, T], `new` [1, n, T, m]."""


def fuse_slot_writes(program: Program) -> Program:
    """`program` with every blend's `add` replaced by a `slot_write`; other operations stay.

    The blend's other operations remain in the list, unused.
    """
    producers = {name: op for op in program.operations for name in op.outputs}
    operations = tuple(_fused(op, producers, program) for op in program.operations)
    return replace(program, operations=operations)


def write_masks(program: Program) -> frozenset[str]:
    """The program inputs that are masks of slot writes."""
    return frozenset(op.inputs["mask"][0] for op in program.operations if op.kind == SLOT_WRITE)


def masks_read_elsewhere(program: Program) -> frozenset[str]:
    """Masks of slot writes that other operations of a pruned program read too, as the numbers they are."""
    read = {
        name
        for op in program.operations
        if op.kind != SLOT_WRITE
        for names in op.inputs.values()
        for name in names
    }
    return write_masks(program) & (read | set(program.outputs))


def pruned(program: Program) -> Program:
    """`program` without operations of whose results nothing comes, such as the blends of fused writes."""
    wanted = set(program.outputs)
    kept = []
    for operation in reversed(program.operations):
        if not operation.outputs or wanted.intersection(operation.outputs):
            kept.append(operation)
            wanted.update(name for names in operation.inputs.values() for name in names)
    return replace(program, operations=tuple(reversed(kept)))


def _fused(add: Operation, producers: Mapping[str, Operation], program: Program) -> Operation:
    if add.kind != "add":
        return add
    kept_part, new_part = (producers.get(add.inputs[side][0]) for side in ("x", "y"))
    if kept_part is None or new_part is None or (kept_part.kind, new_part.kind) != ("mul", "matmul"):
        return add
    old, kept = (producers.get(kept_part.inputs[side][0]) for side in ("x", "y"))
    held = kept_part.inputs["x"][0]
    is_state = held in program.inputs or (old is not None and old.kind == "read_state")
    if not is_state or kept is None or kept.kind != "sub":
        return add
    mask, one = new_part.inputs["x"][0], program.constants.get(kept.inputs["x"][0])
    summed = producers.get(kept.inputs["y"][0])
    if (
        mask not in program.inputs
        or not isinstance(one, np.ndarray)
        or one.size != 1
        or one != 1
        or summed is None
        or summed.kind != "reduce_sum"
        or summed.inputs["x"] != (mask,)
        or not _is_over_lanes(summed, program)
        or _is_transposed(new_part, program)
    ):
        return add
    inputs = {"state": (held,), "mask": (mask,), "new": new_part.inputs["y"]}
    return Operation(SLOT_WRITE, add.name, inputs, add.outputs)


def _is_over_lanes(summed: Operation, program: Program) -> bool:
    axes = program.constants.get(summed.inputs["axes"][0])
    return isinstance(axes, np.ndarray) and axes.ravel().tolist() == [3]


def _is_transposed(matmul: Operation, program: Program) -> bool:
    flags = (matmul.inputs[key][0] for key in ("transpose_x", "transpose_y") if key in matmul.inputs)
    return any(bool(np.asarray(program.constants[flag])) for flag in flags)
