"""Check that a program is well-formed before a library gets it.

A damaged or hostile protobuf may have names that are defined twice or used before their definition, outputs
that no operation computes, or shapes beyond any memory. A library reacts to such a program with its own
exception, hours of work, or a crash. This module traces every name and every shape through the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import shape_at
from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.shape_table import Shape, result_shapes
from anespec.system.errors import ArtifactError
from anespec.system.formatting import bytes_text
from anespec.system.machine import machine_memory

if TYPE_CHECKING:
    from anespec.runtime.backends.portable.program import Constant, Operation, Program

T_TRIED = (1, 128)
"""Values of T for which shapes are traced if T may vary: one lane, and the widest pass."""

MOST_GROWTH = 256
"""The largest allowed ratio of a result to the largest tensor among a shard's inputs and constants.

The largest results of the graph are attention scores [1, heads, T, S]: `heads` times the mask [1, 1, T, S].
"""

MOST_AXES = 5
"""The largest rank of a value, which is Core ML's limit."""

MOST_NUMBERS = 1 << 40
"""The largest number of elements of a value; no input or state has so many."""


def check_sound(program: Program) -> None:
    """Trace names and shapes through a program.

    The check ends at an operation that is in no table; the backend that runs the program refuses it by name.

    Raises:
        ArtifactError: a name is defined twice, never, or after its use; a shape or a parameter does not fit
            its operation; a result is too large; or there is no output.
    """
    _require_names(program)
    flexible = any(size is None for shape in program.inputs.values() for size in shape)
    for t in T_TRIED if flexible else T_TRIED[:1]:
        _follow(program, t)


def _require_names(program: Program) -> None:
    made = [name for operation in program.operations for name in operation.outputs]
    defined = Counter([*program.inputs, *program.states, *program.constants, *made])
    for name, count in defined.items():
        if count > 1:
            raise _unsound(program, f"{name!r} is defined {count} times")
    if not program.outputs or len(set(program.outputs)) < len(program.outputs):
        raise _unsound(program, f"has the outputs {list(program.outputs)}")
    for name in program.outputs:
        if name not in made:
            raise _unsound(program, f"no operation computes its output {name!r}")


def _unsound(program: Program, reason: str) -> ArtifactError:
    return ArtifactError(f"{program.source}: {reason}; convert the model again")


class ShapesSoFar(Mapping[str, Shape]):
    """The shapes of the values computed so far, and of the constants that may be used as values."""

    def __init__(self, program: Program, t: int) -> None:
        self.constants = program.constants
        self.made: dict[str, Shape] = {name: shape_at(shape, t) for name, shape in program.inputs.items()}

    def add(self, operation: Operation, results: tuple[Shape, ...]) -> None:
        """Add the shapes of an operation's results."""
        self.made.update(zip(operation.outputs, results, strict=True))

    def __getitem__(self, name: str) -> Shape:
        if name in self.made:
            return self.made[name]
        constant = self.constants[name]
        if not _is_value(constant):
            raise KeyError(name)
        return constant.shape

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


def _is_value(constant: Constant) -> TypeGuard[NDArray[Any]]:
    """Return whether operations may use a constant as a value: a non-empty array of fp16, or one integer."""
    if not isinstance(constant, np.ndarray):
        return False
    is_bound = constant.dtype == np.int32 and constant.shape == (1,)
    return is_bound or (constant.dtype == np.float16 and constant.size > 0)


def _follow(program: Program, t: int) -> None:
    shapes = ShapesSoFar(program, t)
    given = [*shapes.made.items(), *program.states.items()]
    for name, shape in given:
        if not all(size > 0 for size in shape) or prod(shape) > MOST_NUMBERS or len(shape) > MOST_AXES:
            raise _unsound(program, f"{name!r} has the impossible shape {shape}")
    held = [c.shape for c in program.constants.values() if not isinstance(c, str)]
    most = MOST_GROWTH * max(prod(shape) for shape in ((1,), *held, *(shape for _, shape in given)))
    for operation in program.operations:
        arguments = Arguments(operation, shapes, program.constants, program.source)
        results = result_shapes(arguments, program.states)
        if results is None:
            return
        for shape in results:
            if prod(shape) > most or len(shape) > MOST_AXES:
                raise arguments.refused(f"makes a value of the excessive shape {shape}")
        shapes.add(operation, results)


def require_room_for_states(program: Program, bytes_per_number: int) -> None:
    """Check that a program's states fit into this machine's memory.

    Raises:
        ArtifactError: the states take more than the whole memory.
    """
    needed = bytes_per_number * sum(prod(shape) for shape in program.states.values())
    memory = machine_memory()
    if needed > memory:
        raise ArtifactError(
            f"{program.source}: its K/V states take {bytes_text(needed)} and this machine has "
            f"{bytes_text(memory)} of memory; convert with a shorter --context or fewer --sequences"
        )
