"""Keep K/V states in OpenVINO's variables, which have as many slots as the span of a pass."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.arguments import Arguments, slices_of
from anespec.runtime.backends.portable.openvino_cpu.library import InferRequest
from anespec.runtime.backends.portable.openvino_cpu.library import Tensor as SharedTensor
from anespec.runtime.backends.portable.program import Operation, Program
from anespec.runtime.backends.runner import PoolNames, Tensor

# A state with several entries is split into one state for each entry, if the program treats entries apart.
#
# A packed state is read whole, sliced by layer, and written back whole with one entry replaced. If a library
# allows any number of states, the split program copies one entry instead of all. The numbers are the same. A
# slice_update that replaces a whole entry becomes a plain write.


@dataclass(frozen=True)
class StateEntries:
    """A program, and the new states that replace each state of the original program.

    A state that is not split maps to itself. Otherwise the first axis of each new state is 1.
    """

    program: Program
    entries: Mapping[str, tuple[str, ...]]

    def pools(self, pools: tuple[PoolNames, ...]) -> tuple[PoolNames, ...]:
        """Return the pools with the names of the new states; other names stay."""
        return tuple(
            replace(
                pool,
                states=tuple(name for state in pool.states for name in self.entries.get(state, (state,))),
            )
            for pool in pools
        )


def split_states(program: Program) -> StateEntries:
    """Return `program` with a state for each entry of every state whose entries it treats apart.

    Raises:
        ArtifactError: the bounds of a slice of a state are unsound.
    """
    uses = {name: _uses(program, name) for name in program.states}
    states: dict[str, tuple[int, ...]] = {}
    entries: dict[str, tuple[str, ...]] = {}
    for name, shape in program.states.items():
        whole = uses[name] is None or shape[0] == 1
        entries[name] = (name,) if whole else tuple(_entry(name, entry) for entry in range(shape[0]))
        states |= dict.fromkeys(entries[name], shape if whole else (1, *shape[1:]))
    changed = {at: operations for use in uses.values() if use is not None for at, operations in use.items()}
    operations = tuple(
        result for at, operation in enumerate(program.operations) for result in changed.get(at, (operation,))
    )
    return StateEntries(replace(program, states=states, operations=operations), entries)


def _entry(state: str, entry: int) -> str:
    return f"{state}/{entry}"


@dataclass(frozen=True)
class _Read:
    """The value of a read_state: the operation's index, and the number of earlier writes of the state."""

    at: int
    writes: int


@dataclass(frozen=True)
class _Update:
    """A slice_update of a state's value: the operation's index, the entry, and the new value."""

    read: _Read
    at: int
    entry: int
    value: str


def _uses(program: Program, state: str) -> Mapping[int, tuple[Operation, ...]] | None:
    """Return the operations that replace others when `state` is split, by index; None if it cannot be."""
    shape, alone = program.states[state], program.states[state][0] == 1
    reads: dict[str, _Read] = {}
    updates: dict[str, _Update] = {}
    changed: dict[int, tuple[Operation, ...]] = {}
    writes = 0
    for at, op in enumerate(program.operations):
        taken = [name for key, names in op.inputs.items() for name in names]
        if op.kind == "read_state" and op.inputs["input"] == (state,):
            reads[op.outputs[0]] = _Read(at, writes)
            changed[at] = (op,) if alone else ()
            continue
        if op.kind == "write_state" and op.inputs["input"] == (state,):
            update = updates.pop(op.inputs["data"][0], None)
            if update is not None and update.read.writes == writes:
                target = state if alone else _entry(state, update.entry)
                changed[at] = (replace(op, inputs={"input": (target,), "data": (update.value,)}),)
                changed[update.at] = ()
            elif update is not None or not alone:
                return None
            writes += 1
            continue
        if any(name in updates for name in taken):
            return None
        read = next((reads[name] for name in taken if name in reads), None)
        if read is None:
            continue
        entry = _entry_of(op, program, shape, reads)
        if entry is not None and op.kind == "slice_update":
            updates[op.outputs[0]] = _Update(read, at, entry, op.inputs["update"][0])
        elif entry is not None and op.kind == "slice_by_index" and not alone:
            source = {"input": (_entry(state, entry),)}
            changed[read.at] += (Operation("read_state", op.name, source, op.outputs),)
            changed[at] = ()
        elif not alone:
            return None
    lost = updates or any(name in reads or name in updates for name in program.outputs)
    return None if lost else changed


def _entry_of(
    op: Operation, program: Program, shape: tuple[int, ...], reads: Mapping[str, _Read]
) -> int | None:
    """Return the entry that a slice of a state reads or replaces as a whole; None for other slices."""
    others = [name for key, names in op.inputs.items() if key != "x" for name in names]
    if op.kind not in ("slice_by_index", "slice_update") or any(name in reads for name in others):
        return None
    arguments = Arguments[object](op, {}, program.constants, program.source)
    if not (arguments.is_constant("begin") and arguments.is_constant("end")):
        return None
    first, *rest = slices_of(arguments, shape)
    whole = all(part == slice(0, size) for part, size in zip(rest, shape[1:], strict=True))
    return int(first.start) if whole and first.stop - first.start == 1 else None


class States:
    """The states of one request.

    A variable holds a state's first slots. The others are kept in fp16 arrays, whose pages take no memory
    until they are written. Values are rounded to fp16 when they are written, so to move them changes none.
    """

    def __init__(self, request: InferRequest, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make states of zeros; their variables have no slots until `stretch`."""
        self._variables: dict[str, Any] = {state.name: state for state in request.query_state()}
        self._beyond = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
        self._spans = dict.fromkeys(shapes, 0)

    def stretch(self, name: str, span: int) -> None:
        """Make a state's variable hold its first `span` slots; costs a copy if it held another number."""
        before = self._spans[name]
        if before == span:
            return
        beyond = self._beyond[name]
        held = np.zeros((*beyond.shape[:2], span, beyond.shape[3]), np.float32)
        kept = min(before, span)
        if before:
            values = self._held(name)
            held[:, :, :kept] = values[:, :, :kept]
            beyond[:, :, kept:before] = to_fp16(values[:, :, kept:])
        held[:, :, kept:] = beyond[:, :, kept:span]
        self._variables[name].state = SharedTensor(held)
        self._spans[name] = span

    def read(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of `count` slots from `first` on, fp16."""
        inside = max(0, min(self._spans[name], first + count) - first)
        found = self._beyond[name][:, :, first : first + count].copy()
        if inside:
            found[:, :, :inside] = to_fp16(self._held(name)[:, :, first : first + inside])
        return found

    def write(self, name: str, first: int, value: Tensor) -> None:
        """Replace slots from `first` on.

        OpenVINO returns a view of the variable's memory, so writing to it is enough. If it ever returns a
        copy, the whole variable is written back.
        """
        inside = max(0, min(self._spans[name], first + value.shape[2]) - first)
        self._beyond[name][:, :, first + inside : first + value.shape[2]] = value[:, :, inside:]
        if inside:
            held = self._held(name)
            held[:, :, first : first + inside] = value[:, :, :inside]
            if not np.shares_memory(held, self._held(name)):
                self._variables[name].state = SharedTensor(held)

    def slots(self, name: str) -> int:
        """Return the number of slots of a state."""
        return self._beyond[name].shape[2]

    def _held(self, name: str) -> NDArray[np.float32]:
        held: NDArray[np.float32] = self._variables[name].state.data
        return held


def to_fp16(values: NDArray[np.float32]) -> Tensor:
    """Return a copy in fp16. Values beyond its range become infinite; the gates and the sampler find them."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)
