"""Replace the graph's writes of T rows into slots by a `slot_write`, which a library can run as a scatter.

The graph computes `state * (1 - sum_t mask) + mask @ new`, which touches all S slots to change T of them,
since a scatter would leave the Neural Engine. A scatter has the same result, bit for bit except for the sign
of a zero, if each column of the mask is one-hot or zero, no two columns share a slot, and the state is
finite. That is the contract of kv_write_mask (DESIGN.md section 4).

The other form of a write is a slice_update from the first to the last of the slots [T] in an input, if these
are consecutive. That is the contract of kv_position (see manifests.schema.KVCacheGroup.write_spec).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.portable.arguments import Arguments, slices_of
from anespec.runtime.backends.portable.program import Operation, Program
from anespec.runtime.backends.runner import Homes, Tensor

SLOT_WRITE = "slot_write"
"""The operation that replaces both forms.

Its inputs are `state` (the value of a state, or an input in its place), `mask` [1, 1, S, T] or the slots [T]
in its place, and `new` [1, n, T, m].
"""

ALL_BUT_SLOTS = [True, True, False, True]
"""Which axes of a state [1, n_kv, S, head_dim] a write of consecutive slots replaces as a whole."""

LANES_TRIED = (1, 2, 5)
"""Values of T for which the bounds of a slice_update are checked."""


@dataclass(frozen=True)
class WrittenSlots:
    """The slots that a pass writes, and the lanes whose rows go there; both are int32 [T]."""

    slots: Homes
    lanes: NDArray[np.int32]


def written_slots(mask: Tensor | Homes) -> WrittenSlots:
    """Return the slots of a scatter of T rows. A lane that writes no slot repeats the write of another lane.

    Raises:
        ValueError: the mask breaks its contract (see pass_inputs.homes_of).
    """
    homes = homes_of(mask)
    writers = np.flatnonzero(homes >= 0)
    lanes = np.where(homes >= 0, np.arange(len(homes)), writers[0]).astype(np.int32)
    return WrittenSlots(homes[lanes], lanes)


def fuse_slot_writes(program: Program) -> Program:
    """Return `program` with every write of rows into slots replaced by a `slot_write`.

    Its other operations remain in the list, unused (see `pruned`).
    """
    producers = {name: op for op in program.operations for name in op.outputs}
    fusing = {"add": _fused, "slice_update": _fused_update}
    operations = tuple(
        fusing[op.kind](op, producers, program) if op.kind in fusing else op for op in program.operations
    )
    return replace(program, operations=operations)


def write_masks(program: Program) -> frozenset[str]:
    """Return the program's inputs that are masks, or slots, of slot writes."""
    return frozenset(op.inputs["mask"][0] for op in program.operations if op.kind == SLOT_WRITE)


def masks_read_elsewhere(program: Program) -> frozenset[str]:
    """Return the masks of slot writes that other operations of a pruned program read too."""
    read = {
        name
        for op in program.operations
        if op.kind != SLOT_WRITE
        for names in op.inputs.values()
        for name in names
    }
    return write_masks(program) & (read | set(program.outputs))


def pruned(program: Program) -> Program:
    """Return `program` without operations whose results are unused, such as those of replaced writes."""
    wanted = set(program.outputs)
    kept = []
    for operation in reversed(program.operations):
        if not operation.outputs or wanted.intersection(operation.outputs):
            kept.append(operation)
            wanted.update(name for names in operation.inputs.values() for name in names)
    return replace(program, operations=tuple(reversed(kept)))


def is_transposed(matmul: Operation, program: Program) -> bool:
    """Return whether a product transposes either factor."""
    flags = (matmul.inputs[key][0] for key in ("transpose_x", "transpose_y") if key in matmul.inputs)
    return any(bool(np.asarray(program.constants[flag])) for flag in flags)


def _fused(add: Operation, producers: Mapping[str, Operation], program: Program) -> Operation:
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
        or is_transposed(new_part, program)
    ):
        return add
    inputs = {"state": (held,), "mask": (mask,), "new": new_part.inputs["y"]}
    return Operation(SLOT_WRITE, add.name, inputs, add.outputs)


def _fused_update(update: Operation, producers: Mapping[str, Operation], program: Program) -> Operation:
    held, new = update.inputs["x"][0], update.inputs["update"][0]
    old = producers.get(held)
    is_state = held in program.inputs or (old is not None and old.kind == "read_state")
    if not is_state or update.inputs.keys() != {"x", "update", "begin", "end", "begin_mask", "end_mask"}:
        return update
    masks = [_constant(update, key, program) for key in ("begin_mask", "end_mask")]
    first, end = (_bound(update.inputs[key][0], producers) for key in ("begin", "end"))
    if masks != [ALL_BUT_SLOTS] * 2 or first is None or end is None or end.kind != "add":
        return update
    slots, last = first.inputs["x"][0], producers.get(end.inputs["x"][0])
    if (
        len(program.inputs.get(slots, ())) != 1
        or last is None
        or last.inputs["x"] != (slots,)
        or not _is_one_of(first, 0, program)
        or not _is_one_of(last, -1, program)
        or _constant(end, "y", program) != [1]
    ):
        return update
    inputs = {"state": (held,), "mask": (slots,), "new": (new,)}
    return Operation(SLOT_WRITE, update.name, inputs, update.outputs)


def _constant(operation: Operation, key: str, program: Program) -> list[Any] | None:
    """Return a constant input as a list; None if the input is not a constant."""
    value = program.constants.get(operation.inputs[key][0])
    return list(value.ravel().tolist()) if isinstance(value, np.ndarray) else None


def _bound(name: str, producers: Mapping[str, Operation]) -> Operation | None:
    """Return the operation that computes the slot in a bound [4] of a state's slice, None if none does."""
    joined = producers.get(name)
    if joined is None or joined.kind != "concat" or len(joined.inputs["values"]) != len(ALL_BUT_SLOTS):
        return None
    return producers.get(joined.inputs["values"][ALL_BUT_SLOTS.index(False)])


def _is_one_of(cut: Operation, place: int, program: Program) -> bool:
    """Return whether an operation takes the element at index `place` of an input [T], for several T."""
    if cut.kind != "slice_by_index":
        return False
    arguments = Arguments[object](cut, {}, program.constants, program.source)
    (fixed,) = program.inputs[cut.inputs["x"][0]]
    return all(
        slices_of(arguments, (lanes,)) == (slice(place % lanes, place % lanes + 1),)
        for lanes in (LANES_TRIED if fixed is None else (fixed,))
    )


def _is_over_lanes(summed: Operation, program: Program) -> bool:
    axes = program.constants.get(summed.inputs["axes"][0])
    return isinstance(axes, np.ndarray) and axes.ravel().tolist() == [3]
