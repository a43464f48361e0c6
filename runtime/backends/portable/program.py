"""Load a shard as a program: a typed list of operations. Every portable library uses this loader.

A program is one function of a package (mil_package). Its large constants are memory-mapped from the weight
file (MILBlob: at a constant's offset is a 64-byte record: sentinel 0xDEADBEEF, type, size, offset of the
data).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.mil_package import (
    FileReference,
    Function,
    MILPackage,
    Operation,
    Packed,
    TensorType,
    read_package,
)
from anespec.runtime.backends.portable.soundness import check_sound
from anespec.system.errors import ArtifactError

__all__ = ["Constant", "Operation", "Program", "chain", "load_program", "merge", "program_of"]

BLOB_SENTINEL = 0xDEADBEEF
BLOB_RECORD = struct.Struct("<IIQQ")
BLOB_PREFIX = "@model_path/"

Constant = NDArray[Any] | Packed | str


@dataclass(frozen=True)
class Program:
    """Operations in execution order, with their inputs, states, outputs and constants by name.

    In shapes None is T. `constants` are arrays or strings: large arrays are memory-mapped, numbers of fewer
    than 8 bits are packed. `interface` has the types of a loaded shard's inputs, outputs and states. `source`
    names the program in errors.
    """

    source: str
    inputs: Mapping[str, tuple[int | None, ...]]
    states: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    constants: Mapping[str, Constant]
    interface: Mapping[str, TensorType] = field(default_factory=dict)


def load_program(package: Path, name: str | None = None) -> Program:
    """Load the function `name` of an .mlpackage; None is its default function.

    Raises:
        ArtifactError: a file is missing or damaged, the package is not an ML program, or the program is not
            well-formed (see soundness).
    """
    read = read_package(package)
    name = name or read.default_function
    if name not in read.functions:
        raise ArtifactError(f"{package}: has no function {name!r}; convert the model again")
    return program_of(read, read.functions[name])


def program_of(package: MILPackage, function: Function) -> Program:
    """Return the program of a package's function, with its large constants mapped.

    Raises:
        ArtifactError: a constant is damaged, or the program is not well-formed (see soundness).
    """
    for operation in function.operations:
        if operation.blocks:
            raise ArtifactError(
                f"{package.path}: {operation.name} is a {operation.kind} with nested blocks, which are not "
                "supported; convert the model again"
            )
    program = _program(function, package)
    check_sound(program)
    return program


def _program(function: Function, package: MILPackage) -> Program:
    types, weights = function.types, WeightFiles(package)
    met = (*function.inputs, *function.states, *(name for name in function.outputs if name in types))
    return Program(
        source=str(package.path),
        inputs={name: types[name].shape for name in function.inputs},
        states={name: types[name].fixed for name in function.states},
        outputs=function.outputs,
        operations=function.operations,
        constants={
            name: weights.constant(value) if isinstance(value, FileReference) else value
            for name, value in function.constants.items()
        },
        interface={name: types[name] for name in met},
    )


class WeightFiles:
    """The weight files of a package. Each is mapped once."""

    def __init__(self, package: MILPackage) -> None:
        self._package = package
        self._mapped: dict[str, NDArray[np.uint8]] = {}

    def constant(self, reference: FileReference) -> NDArray[Any] | Packed:
        """Return the array to which a reference points; raise ArtifactError if the file is damaged."""
        element, shape = reference.type.element, reference.type.fixed
        if element is None or not element.has_dtype:
            raise ArtifactError(
                f"{self._package.path}: holds a constant of the unsupported type {reference.type}"
                "; convert the model again"
            )
        file = self._file(reference.file)
        record = bytes(file[reference.offset : reference.offset + BLOB_RECORD.size])
        if len(record) == BLOB_RECORD.size:
            sentinel, _, size, offset = BLOB_RECORD.unpack(record)
            if sentinel == BLOB_SENTINEL and size == element.nbytes(shape) and offset + size <= file.size:
                data = file[offset : offset + size]
                if element.packed:
                    return Packed(data, element, shape)
                return data.view(element.dtype).reshape(shape)
        raise ArtifactError(
            f"{self._package.path}: the weights file is damaged at byte {reference.offset}"
            "; convert the model again"
        )

    def _file(self, name: str) -> NDArray[np.uint8]:
        if name not in self._mapped:
            package, path = self._package.path, self._package.folder / name.removeprefix(BLOB_PREFIX)
            if not path.resolve().is_relative_to(package.resolve()):
                raise ArtifactError(
                    f"{package}: its weight file {path} is outside the package; convert the model again"
                )
            if path.exists() and not path.is_file():
                raise ArtifactError(f"{package}: its weights {path} are not a file; convert the model again")
            try:
                self._mapped[name] = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError) as error:
                raise ArtifactError(
                    f"{path}: the weights cannot be read ({error}); convert the model again"
                ) from None
        return self._mapped[name]


def chain(programs: Sequence[Program], hidden_in: str, hidden_out: str) -> Program:
    """Join consecutive layer shards into one program: `hidden_out` of each is `hidden_in` of the next.

    Other inputs are shared by name. The names of states, and of other outputs, must be unique; these outputs
    come after the hidden one. Operations stay the same.

    Raises:
        ArtifactError: the shards do not fit together.
    """
    if len(programs) == 1:
        return programs[0]
    operations: list[Operation] = []
    constants: dict[str, Constant] = {}
    inputs: dict[str, tuple[int | None, ...]] = dict(programs[0].inputs)
    states: dict[str, tuple[int, ...]] = {}
    hidden, others = hidden_in, list[str]()
    for number, program in enumerate(programs):
        if states.keys() & program.states.keys():
            raise ArtifactError(
                f"{program.source}: has a state that an earlier shard also has; convert the model again"
            )
        if hidden_in not in program.inputs or hidden_out not in program.outputs:
            raise ArtifactError(
                f"{program.source}: does not compute {hidden_out!r} from {hidden_in!r}; convert the model "
                "again"
            )
        if any(inputs.get(name, shape) != shape for name, shape in program.inputs.items()):
            raise ArtifactError(
                f"{program.source}: takes inputs of other shapes than the shards before it"
                "; convert the model again"
            )
        own = [name for name in program.outputs if name != hidden_out]
        shared = {name: name for name in (*program.inputs, *program.states, *own)} | {hidden_in: hidden}
        renamed = _Renaming(shared, f"{number}/")
        others += own
        operations += [renamed.operation(op) for op in program.operations]
        constants |= {renamed(name): value for name, value in program.constants.items()}
        inputs = dict(program.inputs) | inputs
        states |= program.states
        hidden = renamed(hidden_out)
    chained = Program(_sources(programs), inputs, states, (hidden, *others), tuple(operations), constants)
    check_sound(chained)
    return chained


def merge(programs: Sequence[Program]) -> Program:
    """Join shards with the same inputs, such as head shards, into one program with all outputs in order.

    Raises:
        ArtifactError: the shards have different inputs.
    """
    if len(programs) == 1:
        return programs[0]
    operations: list[Operation] = []
    constants: dict[str, Constant] = {}
    outputs: list[str] = []
    for number, program in enumerate(programs):
        if program.inputs != programs[0].inputs:
            raise ArtifactError(
                f"{program.source}: takes other inputs than {programs[0].source}; convert the model again"
            )
        renamed = _Renaming({name: name for name in program.inputs}, f"{number}/")
        operations += [renamed.operation(op) for op in program.operations]
        constants |= {renamed(name): value for name, value in program.constants.items()}
        outputs += [renamed(name) for name in program.outputs]
    first = programs[0]
    merged = Program(_sources(programs), first.inputs, {}, tuple(outputs), tuple(operations), constants)
    check_sound(merged)
    return merged


def _sources(programs: Sequence[Program]) -> str:
    """Return the source of a joined program; the names of its operations begin with the shard's index."""
    return f"{programs[0].source} and the {len(programs) - 1} after it"


@dataclass(frozen=True)
class _Renaming:
    """Adds a prefix to names of values that shards do not share."""

    shared: Mapping[str, str]
    prefix: str

    def __call__(self, name: str) -> str:
        return self.shared.get(name, self.prefix + name)

    def operation(self, op: Operation) -> Operation:
        return replace(
            op,
            name=self.prefix + op.name,
            inputs={key: tuple(self(name) for name in names) for key, names in op.inputs.items()},
            outputs=tuple(self(name) for name in op.outputs),
        )
