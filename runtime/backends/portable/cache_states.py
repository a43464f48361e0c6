"""Turn caches of the host into states of the program, for a library whose states are faster than inputs.

After a pass the host would put the new rows into their slots; the pass itself does the same to the slots that
it attends to. So a program that keeps those gives the same bits.
"""

from collections.abc import Mapping
from dataclasses import replace

from anespec.runtime.backends.portable.program import Operation, Program
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE, fuse_slot_writes


def caches_as_states(program: Program, new_rows: Mapping[str, str]) -> Program | None:
    """`program` with states in place of inputs; `new_rows` are the outputs by the inputs that they belong to.

    None where the program does not attend to just what the host would write.
    """
    if not new_rows.keys() <= program.inputs.keys():
        return None
    written: dict[str, list[Operation]] = {name: [] for name in new_rows}
    for op in fuse_slot_writes(program).operations:
        if op.kind == SLOT_WRITE and op.inputs["state"][0] in written:
            written[op.inputs["state"][0]].append(op)
    for name, writes in written.items():
        if len(writes) != 1 or writes[0].inputs["new"] != (new_rows[name],):
            return None
    held = {name: f"{name}/held" for name in new_rows}
    reads = [Operation("read_state", value, {"input": (name,)}, (value,)) for name, value in held.items()]
    writing = {
        writes[0].outputs: Operation(
            "write_state", f"{name}/written", {"input": (name,), "data": writes[0].outputs}, ()
        )
        for name, writes in written.items()
    }
    operations = list(reads)
    for op in program.operations:
        inputs = {key: tuple(held.get(name, name) for name in names) for key, names in op.inputs.items()}
        operations.append(replace(op, inputs=inputs))
        if op.outputs in writing:
            operations.append(writing[op.outputs])
    shapes = {name: tuple(size or 1 for size in program.inputs[name]) for name in new_rows}
    return replace(
        program,
        inputs={name: shape for name, shape in program.inputs.items() if name not in new_rows},
        states={**program.states, **shapes},
        outputs=tuple(name for name in program.outputs if name not in new_rows.values()),
        operations=tuple(operations),
    )
