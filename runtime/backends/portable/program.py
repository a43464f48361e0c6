"""A shard as a typed list of operations: the one loader of the portable backend.

An .mlpackage holds a protobuf (Apple's MIL.proto) whose large constants live in a blob file
(MILBlob: at a value's offset a 64-byte record, sentinel 0xDEADBEEF, type, size, offset of the data).
Blobs stay memory-mapped.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import ArtifactError
from anespec.runtime.backends.portable.packed import PACKED_TYPES, Packed
from anespec.runtime.backends.portable.proto import model_classes
from anespec.runtime.backends.portable.soundness import check_sound

BLOB_SENTINEL = 0xDEADBEEF
BLOB_RECORD = struct.Struct("<IIQQ")
BLOB_PREFIX = "@model_path/"

FUNCTION = "main"

MOST_BYTES = 2**31
"""Protobuf's own limit."""

# MIL.proto's DataType; bytes-encoded types say how numpy reads them.
_DTYPES: Mapping[int, np.dtype[Any]] = {
    1: np.dtype(np.bool_),
    10: np.dtype(np.float16),
    11: np.dtype(np.float32),
    12: np.dtype(np.float64),
    21: np.dtype(np.int8),
    22: np.dtype(np.int16),
    23: np.dtype(np.int32),
    24: np.dtype(np.int64),
    31: np.dtype(np.uint8),
    32: np.dtype(np.uint16),
    33: np.dtype(np.uint32),
    34: np.dtype(np.uint64),
}
_STRING = 2

_FLOAT16 = 10

Constant = NDArray[Any] | Packed | str


@dataclass(frozen=True)
class ValueType:
    """The declared type of an input, an output or a state; a None dimension is T."""

    shape: tuple[int | None, ...]
    fp16: bool


@dataclass(frozen=True)
class Operation:
    """One MIL operation. An input may take several values (concat); names refer to values."""

    kind: str
    name: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Operations in execution order. Shapes have None where a dimension is T.

    `constants` are arrays (memory-mapped where large, packed where their numbers are less than a byte)
    or strings, by value name. `interface` has the types of a loaded shard's inputs, outputs and states.
    """

    source: str
    inputs: Mapping[str, tuple[int | None, ...]]
    states: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    constants: Mapping[str, Constant]
    interface: Mapping[str, ValueType] = field(default_factory=dict)


def load_program(package: Path) -> Program:
    """Read the function `main` of an .mlpackage.

    Raises:
        ArtifactError: a file is missing or is not an ML program, or the program means nothing
            (see soundness).
    """
    model, folder = read_model(package)
    if FUNCTION not in model.mlProgram.functions:
        raise ArtifactError(f"{package}: has no function {FUNCTION!r}; convert the model again")
    try:
        program = _Reader(package, folder).program(model.mlProgram.functions[FUNCTION])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Protobuf accepts almost any bytes, so damage shows wherever a value is first made sense of.
        raise ArtifactError(
            f"{package}: its model file is damaged ({error}); convert the model again"
        ) from error
    check_sound(program)
    return program


def read_model(package: Path) -> tuple[Any, Path]:
    """The protobuf `Model` of an .mlpackage that holds an ML program, and the folder its weights are below.

    Raises:
        ArtifactError: a file is missing or is not an ML program.
    """
    try:
        model_file = package / "Data" / _root_model(package)
        model = model_classes().Model()
        model.ParseFromString(_read(package, model_file))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{package}: is not a readable .mlpackage ({error}); convert the model again"
        ) from error
    except Exception as error:  # protobuf's DecodeError lives in a module that varies with its version
        if type(error).__name__ != "DecodeError":
            raise
        raise ArtifactError(f"{package}: its model file is damaged; convert the model again") from error
    if model.WhichOneof("Type") != "mlProgram":
        raise ArtifactError(f"{package}: is not an ML program; convert the model again")
    return model, model_file.parent


def _root_model(package: Path) -> str:
    manifest = json.loads(_read(package, package / "Manifest.json").decode())
    return str(manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"])


def _read(package: Path, path: Path) -> bytes:
    """A file of the package; OSError or ValueError where it is none, lies outside or is too large."""
    if path.exists() and not (path.is_file() and path.resolve().is_relative_to(package.resolve())):
        raise ValueError(f"{path} is no file inside it")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than a protobuf can be")
    return path.read_bytes()


class _Reader:
    """Turns one protobuf function into a Program."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.package = package
        self.folder = folder
        self.blobs: dict[str, NDArray[np.uint8]] = {}
        self.constants: dict[str, Constant] = {}

    def program(self, function: Any) -> Program:
        block = function.block_specializations[function.opset]
        inputs: dict[str, tuple[int | None, ...]] = {}
        states: dict[str, tuple[int, ...]] = {}
        interface: dict[str, ValueType] = {}
        for value in function.inputs:
            if value.type.WhichOneof("type") == "stateType":
                interface[value.name] = _type(value.type.stateType.wrappedType.tensorType)
                states[value.name] = tuple(size or 0 for size in interface[value.name].shape)
            else:
                interface[value.name] = _type(value.type.tensorType)
                inputs[value.name] = interface[value.name].shape
        if len(inputs) + len(states) < len(function.inputs):
            raise ValueError("two inputs have the same name")
        operations = tuple(op for op in (self._operation(raw) for raw in block.operations) if op is not None)
        made = {value.name: value.type for raw in block.operations for value in raw.outputs}
        interface |= {name: _type(made[name].tensorType) for name in block.outputs if name in made}
        return Program(
            str(self.package), inputs, states, tuple(block.outputs), operations, self.constants, interface
        )

    def _operation(self, raw: Any) -> Operation | None:
        outputs = tuple(str(value.name) for value in raw.outputs)
        if raw.type == "const":
            self._define(outputs[0], raw.attributes["val"])
            return None
        name = outputs[0] if outputs else f"{raw.type}_{raw.inputs['input'].arguments[0].name}"
        if raw.blocks:
            raise ArtifactError(
                f"{self.package}: {name} is a {raw.type} with nested blocks, which is not run"
                "; convert the model again"
            )
        inputs = {
            key: tuple(self._arguments(f"{name}/{key}", binding)) for key, binding in raw.inputs.items()
        }
        return Operation(str(raw.type), name, inputs, outputs)

    def _arguments(self, owner: str, binding: Any) -> Iterator[str]:
        """The values of one input by name; one that is written out becomes a constant under `owner`."""
        for index, argument in enumerate(binding.arguments):
            if argument.WhichOneof("binding") == "name":
                yield str(argument.name)
            else:
                name = f"{owner}/{index}"
                self._define(name, argument.value)
                yield name

    def _define(self, name: str, value: Any) -> None:
        if name in self.constants:
            raise ValueError(f"{name!r} is defined twice")
        self.constants[name] = self._value(value)

    def _value(self, value: Any) -> Constant:
        tensor = value.type.tensorType
        shape = tuple(size or 0 for size in _shape(tensor))
        if value.WhichOneof("value") == "blobFileValue":
            return self._blob(value.blobFileValue, tensor.dataType, shape)
        data = value.immediateValue.tensor
        which = data.WhichOneof("value")
        if tensor.dataType == _STRING:
            return str(data.strings.values[0])
        if tensor.dataType in PACKED_TYPES:
            return self._packed(np.frombuffer(data.bytes.values, np.uint8), tensor.dataType, shape)
        dtype = self._dtype(tensor.dataType)
        if which == "bytes":
            return np.frombuffer(data.bytes.values, dtype).reshape(shape)
        values = getattr(data, which).values if which else ()
        with np.errstate(over="raise"):
            return np.array(list(values), dtype).reshape(shape)

    def _dtype(self, code: int) -> np.dtype[Any]:
        try:
            return _DTYPES[code]
        except KeyError:
            raise ArtifactError(
                f"{self.package}: holds a constant of the unsupported MIL type {code}"
                "; convert the model again"
            ) from None

    def _packed(self, data: NDArray[np.uint8], code: int, shape: tuple[int, ...]) -> Packed:
        kind = PACKED_TYPES[code]
        if len(data) != kind.nbytes(shape):
            raise ValueError(f"{len(data)} bytes cannot be {shape} numbers of {kind.bits} bits")
        return Packed(data, kind, shape)

    def _blob(self, reference: Any, code: int, shape: tuple[int, ...]) -> NDArray[Any] | Packed:
        if reference.fileName not in self.blobs:
            path = self.folder / str(reference.fileName).removeprefix(BLOB_PREFIX)
            if not path.resolve().is_relative_to(self.package.resolve()):
                raise ArtifactError(
                    f"{self.package}: its weights file {path} lies outside; convert the model again"
                )
            if path.exists() and not path.is_file():
                raise ArtifactError(
                    f"{self.package}: its weights file {path} is no file; convert the model again"
                )
            try:
                self.blobs[reference.fileName] = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError) as error:
                raise ArtifactError(
                    f"{path}: the weights cannot be read ({error}); convert the model again"
                ) from None
        blob, packed = self.blobs[reference.fileName], PACKED_TYPES.get(code)
        dtype = np.dtype(np.uint8) if packed else self._dtype(code)
        record = bytes(blob[reference.offset : reference.offset + BLOB_RECORD.size])
        if len(record) == BLOB_RECORD.size:
            sentinel, _, size, offset = BLOB_RECORD.unpack(record)
            wanted = packed.nbytes(shape) if packed else dtype.itemsize * math.prod(shape)
            if sentinel == BLOB_SENTINEL and size == wanted and offset + size <= blob.size:
                data = blob[offset : offset + size]
                return Packed(data, packed, shape) if packed else data.view(dtype).reshape(shape)
        raise ArtifactError(
            f"{self.package}: the weights file is damaged at byte {reference.offset}; convert the model again"
        )


def _type(tensor: Any) -> ValueType:
    return ValueType(_shape(tensor), tensor.dataType == _FLOAT16)


def _shape(tensor: Any) -> tuple[int | None, ...]:
    return tuple(
        int(dimension.constant.size) if dimension.WhichOneof("dimension") == "constant" else None
        for dimension in tensor.dimensions
    )


def chain(programs: Sequence[Program], hidden_in: str, hidden_out: str) -> Program:
    """One program out of consecutive layer shards: each one's `hidden_out` is the next one's `hidden_in`.

    Other inputs are shared by name; states must differ in name. Operations are kept as they are.

    Raises:
        ArtifactError: the shards do not fit each other.
    """
    if len(programs) == 1:
        return programs[0]
    operations: list[Operation] = []
    constants: dict[str, Constant] = {}
    inputs: dict[str, tuple[int | None, ...]] = dict(programs[0].inputs)
    states: dict[str, tuple[int, ...]] = {}
    hidden = hidden_in
    for number, program in enumerate(programs):
        if states.keys() & program.states.keys():
            raise ArtifactError(
                f"{program.source}: has a state that an earlier shard has too; convert the model again"
            )
        if hidden_in not in program.inputs or hidden_out not in program.outputs:
            raise ArtifactError(
                f"{program.source}: does not make {hidden_out!r} of {hidden_in!r}; convert the model again"
            )
        if any(inputs.get(name, shape) != shape for name, shape in program.inputs.items()):
            raise ArtifactError(
                f"{program.source}: takes inputs of other shapes than the shards before it"
                "; convert the model again"
            )
        shared = {name: name for name in (*program.inputs, *program.states)} | {hidden_in: hidden}
        renamed = _Renaming(shared, f"{number}/")
        operations += [renamed.operation(op) for op in program.operations]
        constants |= {renamed(name): value for name, value in program.constants.items()}
        inputs = dict(program.inputs) | inputs
        states |= program.states
        hidden = renamed(hidden_out)
    chained = Program(_sources(programs), inputs, states, (hidden,), tuple(operations), constants)
    check_sound(chained)
    return chained


def merge(programs: Sequence[Program]) -> Program:
    """One program out of shards that take the same inputs, such as head shards; outputs in order.

    Raises:
        ArtifactError: the shards do not fit each other.
    """
    if len(programs) == 1:
        return programs[0]
    operations: list[Operation] = []
    constants: dict[str, Constant] = {}
    outputs: list[str] = []
    for number, program in enumerate(programs):
        if program.inputs != programs[0].inputs:
            raise ArtifactError(
                f"{program.source}: takes other inputs than those it is merged with; convert the model again"
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
    """Where stitched operations are from; each one's name begins with its shard's number, from 0."""
    return f"{programs[0].source} and the {len(programs) - 1} after it"


@dataclass(frozen=True)
class _Renaming:
    """Puts a prefix before value names that are not shared between shards."""

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
