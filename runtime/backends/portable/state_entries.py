"""Split the states of a program whose entries are treated apart, for a library that allows many states.

A packed state is read whole, sliced by layer, and written back whole with one entry replaced. The split
program copies one entry instead of all. The numbers are the same. A slice_update that replaces a whole entry
becomes a plain write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anespec.runtime.backends.portable.arguments import Arguments, slices_of
from anespec.runtime.backends.portable.program import Operation, Program
from anespec.runtime.backends.runner import PoolNames


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
    touching = _touching(program)
    uses = {name: _uses(program, name, touching[name]) for name in program.states}
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


def _touching(program: Program) -> Mapping[str, Sequence[tuple[int, Operation]]]:
    """Return, for each state, the operations that take its value, before or after an update, by index."""
    touching: dict[str, list[tuple[int, Operation]]] = {name: [] for name in program.states}
    origin: dict[str, set[str]] = {}
    for at, op in enumerate(program.operations):
        taken = [name for names in op.inputs.values() for name in names]
        states = set().union(*(origin.get(name, ()) for name in taken)) | (touching.keys() & set(taken))
        for state in states:
            touching[state].append((at, op))
        if op.kind in ("read_state", "slice_update"):
            origin |= dict.fromkeys(op.outputs, states)
    return touching


def _uses(
    program: Program, state: str, touching: Sequence[tuple[int, Operation]]
) -> Mapping[int, tuple[Operation, ...]] | None:
    """Return the operations that replace others when `state` is split, by index; None if it cannot be."""
    shape, alone = program.states[state], program.states[state][0] == 1
    reads: dict[str, _Read] = {}
    updates: dict[str, _Update] = {}
    changed: dict[int, tuple[Operation, ...]] = {}
    writes = 0
    for at, op in touching:
        taken = [name for names in op.inputs.values() for name in names]
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
