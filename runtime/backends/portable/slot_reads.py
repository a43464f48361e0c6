"""Replace the graph's one-hot products with slots by a `slot_read`, which a library can run as a gather.

A convolution reads the rows of earlier positions as `mask @ slots`, where each row of the mask is one-hot or
zero, since a gather would leave the Neural Engine. That touches all S slots to read a few. A gather has the
same result, bit for bit except for the sign of a zero, if the slots are finite. Such masks are the inputs of
pools that are read by taps (manifests.states.KVCacheGroup).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.program import Operation, Program
from anespec.runtime.backends.portable.slot_writes import is_transposed
from anespec.runtime.backends.runner import Homes, Tensor

SLOT_READ = "slot_read"
"""The operation that replaces a product.

Its inputs are `mask`, an input [1, L, T, S] of the program, and `slots` [1, n, S, m]. Its result is
[1, n, L * T, m]: the slot of each row of the mask, or zeros.
"""

ONE = np.array(1, np.float16).view(np.uint16).item()


@dataclass(frozen=True)
class ReadSlots:
    """The slots that the rows of a mask [1, L, T, S] show.

    `slots` is int32 [L * T], 0 for a row that shows none; `shown` is f32 [1, 1, L * T, 1], 1 or 0.
    """

    slots: NDArray[np.int32]
    shown: NDArray[np.float32]


def read_slots(mask: Tensor | Homes) -> ReadSlots:
    """Return the slots that the rows of a mask show.

    Raises:
        ValueError: a row is neither one-hot nor zero.
    """
    rows = np.ascontiguousarray(mask, np.float16).view(np.uint16).reshape(-1, mask.shape[-1])
    shown = rows.any(axis=1)
    slots = rows.argmax(axis=1).astype(np.int32)
    if (np.count_nonzero(rows, axis=1) > 1).any() or (rows[shown, slots[shown]] != ONE).any():
        raise ValueError("each row of a mask by which slots are read must be one-hot or zero")
    return ReadSlots(slots, np.asarray(shown, np.float32).reshape(1, 1, -1, 1))


def fuse_slot_reads(program: Program) -> Program:
    """Return `program` with the products of every mask that is used for nothing else replaced.

    Its other operations remain in the list, unused (see slot_writes.pruned).
    """
    users: dict[str, list[tuple[Operation, str]]] = {}
    for operation in program.operations:
        for key, names in operation.inputs.items():
            for name in names:
                users.setdefault(name, []).append((operation, key))
    products = {
        product.name: mask
        for mask, shape in program.inputs.items()
        if len(shape) == 4 and mask not in program.outputs
        for product in _products(mask, program, users)
    }
    operations = (
        _read(operation, products[operation.name]) if operation.name in products else operation
        for operation in program.operations
    )
    return replace(program, operations=tuple(operations))


def read_masks(program: Program) -> frozenset[str]:
    """Return the program's inputs by which slots are read."""
    return frozenset(op.inputs["mask"][0] for op in program.operations if op.kind == SLOT_READ)


def _read(product: Operation, mask: str) -> Operation:
    return Operation(
        SLOT_READ, product.name, {"mask": (mask,), "slots": product.inputs["y"]}, product.outputs
    )


def _products(
    mask: str, program: Program, users: Mapping[str, Sequence[tuple[Operation, str]]]
) -> list[Operation]:
    """Return the products of a mask as rows [1, 1, L * T, S] with slots; none if it has another use."""
    found: list[Operation] = []
    for reshape, _ in users.get(mask, ()):
        if reshape.kind != "reshape" or not _keeps_rows(reshape, program, mask):
            return []
        (rows,) = reshape.outputs
        if rows in program.outputs:
            return []
        for product, key in users.get(rows, ()):
            if product.kind != "matmul" or key != "x" or is_transposed(product, program):
                return []
            found.append(product)
    return found


def _keeps_rows(reshape: Operation, program: Program, mask: str) -> bool:
    shape = program.constants.get(reshape.inputs["shape"][0])
    wanted = [1, 1, -1, program.inputs[mask][-1]]
    return isinstance(shape, np.ndarray) and shape.ravel().tolist() == wanted
