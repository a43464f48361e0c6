"""A state is split only if nothing else reads what an entry of it becomes."""

import numpy as np

from anespec.runtime.backends.portable.program import Operation, Program
from anespec.runtime.backends.portable.state_entries import split_states


def operation(kind: str, output: str, **inputs: str) -> Operation:
    given = {key: tuple(names.split()) for key, names in inputs.items()}
    return Operation(kind, f"{kind} {output}", given, (output,) if output else ())


def updated(*more: Operation, update: str = "new", outputs: tuple[str, ...] = ("seen",)) -> Program:
    """A program that replaces the first entry of state `a`, and reads state `b`."""
    operations = (
        operation("read_state", "whole_a", input="a"),
        operation("read_state", "whole_b", input="b"),
        operation("slice_update", "changed", x="whole_a", update=update, begin="begin", end="end"),
        operation("identity", "seen", x="new"),
        *more,
        operation("write_state", "", input="a", data="changed"),
    )
    constants = {"begin": np.zeros(3, np.int32), "end": np.array([1, 2, 4], np.int32)}
    states = {"a": (2, 2, 4), "b": (2, 2, 4)}
    return Program("test", {"new": (1, 2, 4)}, states, outputs, operations, constants)


def test_an_entry_that_is_replaced_whole_is_written_alone() -> None:
    split = split_states(updated())
    assert split.entries["a"] == ("a/0", "a/1")
    (write,) = [each for each in split.program.operations if each.kind == "write_state"]
    assert write.inputs == {"input": ("a/0",), "data": ("new",)}


def test_a_changed_state_that_is_read_elsewhere_stays_whole() -> None:
    """Also where the new entry comes from another state."""
    for update in ("new", "whole_b"):
        program = updated(operation("identity", "copy", x="changed"), update=update)
        assert split_states(program).entries["a"] == ("a",)
