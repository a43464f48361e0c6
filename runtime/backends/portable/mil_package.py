"""Read an .mlpackage as typed functions. No other module reads Core ML's protobufs.

An .mlpackage holds a protobuf (Apple's MIL.proto) and a weight file for its large constants. Here such a
constant is a reference to its place in that file, which is not opened.
"""

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import lcm, prod
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.element_types import MIL_TYPES, ElementType
from anespec.manifests.schema import MAIN
from anespec.system.errors import ArtifactError
from anespec.system.formatting import shape_text
from anespec.system.packages import require_package

# `import coremltools` takes seconds and imports torch. The classes generated from Apple's .proto files are a
# self-contained package inside it, so only that package is imported, under the name PACKAGE.

PACKAGE = "anespec._coreml_proto"


def model_classes() -> ModuleType:
    """Import the module with the class `Model` (Model.proto).

    Raises:
        MissingPackageError: coremltools is not installed.
    """
    if PACKAGE not in sys.modules:
        require_package("coremltools", "reading a shard")
        found = importlib.util.find_spec("coremltools")
        assert found is not None
        assert found.submodule_search_locations
        folder = Path(next(iter(found.submodule_search_locations))) / "proto"
        spec = importlib.util.spec_from_file_location(
            PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.Model_pb2")


@dataclass(frozen=True)
class Packed:
    """An array of integers of fewer than 8 bits, packed into bytes, lowest bits first.

    Large arrays are memory-mapped.
    """

    data: NDArray[np.uint8]
    element: ElementType
    shape: tuple[int, ...]

    @classmethod
    def of(cls, data: NDArray[np.uint8], element: ElementType, shape: tuple[int, ...]) -> Self:
        """Return an array of `shape` over `data`; raise ValueError if the number of bytes is wrong."""
        if len(data) != element.nbytes(shape):
            raise ValueError(f"{len(data)} bytes cannot be {shape} numbers of {element.bits} bits")
        return cls(data, element, shape)

    def unpacked(self) -> NDArray[Any]:
        """Return a copy with one byte for each number: int8 or uint8."""
        bits, count = self.element.bits, prod(self.shape)
        group = lcm(bits, 8) // 8
        padded = self.data if len(self.data) % group == 0 else np.pad(self.data, (0, -len(self.data) % group))
        words = np.zeros(len(padded) // group, np.uint32)
        for byte in range(group):
            words |= padded[byte::group].astype(np.uint32) << np.uint32(8 * byte)
        numbers = np.empty((len(words), 8 * group // bits), np.uint8)
        for place in range(numbers.shape[1]):
            numbers[:, place] = words >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
        whole = numbers.reshape(-1)[:count].reshape(self.shape)
        if not self.element.signed:
            return whole
        unused = 8 - bits
        return (whole << np.uint8(unused)).view(np.int8) >> np.int8(unused)


def unpacked(stored: NDArray[Any] | Packed | str) -> NDArray[Any]:
    """Return a stored constant as an array with an element for each number, a copy only if it was packed."""
    return stored.unpacked() if isinstance(stored, Packed) else np.asarray(stored)


MOST_BYTES = 2**31
"""The largest size of a protobuf message, which the library limits."""

UNKNOWN_BITS = 32
"""The assumed size of an element of an unknown type."""


@dataclass(frozen=True)
class TensorType:
    """The declared type of a value. A dimension of None is T; an element of None is an unsupported type."""

    element: ElementType | None
    shape: tuple[int | None, ...]

    @property
    def bits(self) -> int:
        """The bits of one stored element."""
        return UNKNOWN_BITS if self.element is None else self.element.bits

    @property
    def nbytes(self) -> int:
        """The stored bytes; a dimension of None counts as 1."""
        return -(-self.bits * math.prod(size or 1 for size in self.shape) // 8)

    @property
    def fixed(self) -> tuple[int, ...]:
        """The shape of a value without T; a dimension of None becomes 0."""
        return tuple(size or 0 for size in self.shape)

    def __str__(self) -> str:
        return f"{self.element or 'unknown'} {shape_text(self.shape)}"


@dataclass(frozen=True)
class FileReference:
    """A constant in the weight file `file` (the name in the program), whose record is at byte `offset`."""

    type: TensorType
    file: str
    offset: int


Written = NDArray[Any] | Packed | str
"""A constant whose value is stored in the program itself."""


@dataclass(frozen=True)
class Operation:
    """One MIL operation; its inputs and outputs are names of values. An input may take several (concat).

    `name` is the first output. An operation that writes a state has no output and is named after the state.
    """

    kind: str
    name: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[str, ...]
    blocks: tuple[tuple["Operation", ...], ...] = ()

    def named_inputs(self, *keys: str) -> tuple[str, ...]:
        """Return the names of the values of these inputs, of all inputs without `keys`."""
        chosen = keys or tuple(self.inputs)
        return tuple(name for key in chosen for name in self.inputs.get(key, ()))


@dataclass(frozen=True)
class Function:
    """One function of a program: its operations in execution order, except those that only define a constant.

    `types` has the types of all values, including constants and values in nested blocks.
    """

    name: str
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Written | FileReference]


@dataclass(frozen=True)
class MILPackage:
    """The functions of a package by name.

    `folder` is the folder to which the paths of weight files are relative. `description` is the protobuf
    `ModelDescription`.
    """

    path: Path
    folder: Path
    functions: Mapping[str, Function]
    description: Any

    @property
    def default_function(self) -> str:
        """The name of the default function."""
        return str(self.description.defaultFunctionName) or MAIN


def read_package(package: Path) -> MILPackage:
    """Read an .mlpackage that holds an ML program.

    Raises:
        ArtifactError: a file is missing or damaged, or the package is not an ML program.
    """
    model, folder = read_model(package)
    try:
        functions = read_functions(model)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Protobuf accepts almost any bytes, so damage may show only when a value is interpreted.
        raise ArtifactError(
            f"{package}: its model file is damaged ({error}); convert the model again"
        ) from error
    return MILPackage(package, folder, functions, model.description)


def read_model(package: Path) -> tuple[Any, Path]:
    """Return the protobuf `Model` of an .mlpackage, and the folder to which weight files are relative.

    Raises:
        ArtifactError: a file is missing or damaged, or the package is not an ML program.
    """
    try:
        model_file = root_model(package)
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


def read_functions(model: Any) -> dict[str, Function]:
    """Return the functions of a protobuf `Model` that is an ML program, by name.

    Raises:
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: the protobuf is damaged.
    """
    functions = model.mlProgram.functions
    return {name: _FunctionReader().function(name, functions[name]) for name in sorted(functions)}


def root_model(package: Path) -> Path:
    """Return the path of a package's protobuf, which its Manifest.json names.

    Raises:
        OSError, ValueError, KeyError, TypeError: Manifest.json is missing or damaged.
    """
    manifest = json.loads(_read(package, package / "Manifest.json").decode())
    return package / "Data" / str(manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"])


def _read(package: Path, path: Path) -> bytes:
    """Return the content of a file in the package.

    Raises:
        OSError: the file cannot be read.
        ValueError: the path is not a file in the package, or the file is too large.
    """
    if path.exists() and not (path.is_file() and path.resolve().is_relative_to(package.resolve())):
        raise ValueError(f"{path} is not a file inside it")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than a protobuf can be")
    return path.read_bytes()


class _FunctionReader:
    """Translates one protobuf function into a Function, and collects its constants and types."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Written | FileReference] = {}

    def function(self, name: str, raw: Any) -> Function:
        block = raw.block_specializations[raw.opset]
        inputs: list[str] = []
        states: list[str] = []
        for value in raw.inputs:
            is_state = value.type.WhichOneof("type") == "stateType"
            kind = value.type.stateType.wrappedType if is_state else value.type
            self.types[value.name] = _type(kind.tensorType)
            (states if is_state else inputs).append(str(value.name))
        if len(self.types) < len(raw.inputs):
            raise ValueError("two inputs have the same name")
        operations = tuple(self._operations(block))
        outputs = tuple(str(output) for output in block.outputs)
        return Function(name, tuple(inputs), tuple(states), outputs, operations, self.types, self.constants)

    def _operations(self, block: Any) -> Iterator[Operation]:
        for raw in block.operations:
            if raw.type == "const":
                self._define(str(raw.outputs[0].name), raw.attributes["val"])
            else:
                yield self._operation(raw)

    def _operation(self, raw: Any) -> Operation:
        for value in raw.outputs:
            self.types[value.name] = _type(value.type.tensorType)
        outputs = tuple(str(value.name) for value in raw.outputs)
        written = raw.inputs["input"].arguments if not outputs and "input" in raw.inputs else ()
        name = outputs[0] if outputs else " ".join(str(argument.name) for argument in written)
        inputs = {
            str(key): tuple(self._arguments(f"{name}/{key}", binding)) for key, binding in raw.inputs.items()
        }
        # Before iOS 18, an operation that decompresses a constant had it in attributes instead of inputs.
        for key, value in raw.attributes.items():
            if key != "name":
                self._define(f"{name}/{key}", value)
                inputs[key] = (f"{name}/{key}",)
        blocks = tuple(tuple(self._operations(nested)) for nested in raw.blocks)
        return Operation(str(raw.type), name, inputs, outputs, blocks)

    def _arguments(self, owner: str, binding: Any) -> Iterator[str]:
        """Yield the names of an input's values; an inline value becomes a constant named after `owner`."""
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
        self.types[name] = kind = _type(value.type.tensorType)
        if value.WhichOneof("value") == "blobFileValue":
            blob = value.blobFileValue
            self.constants[name] = FileReference(kind, str(blob.fileName), int(blob.offset))
        else:
            self.constants[name] = _written(kind, value.immediateValue.tensor)


def _written(kind: TensorType, data: Any) -> Written:
    """Return the value of an inline constant, in its declared type."""
    element, shape = kind.element, kind.fixed
    if element is None:
        raise ValueError("it holds a constant of an unsupported MIL type")
    if element is ElementType.STRING:
        return str(data.strings.values[0])
    if element.packed:
        return Packed.of(np.frombuffer(data.bytes.values, np.uint8), element, shape)
    which = data.WhichOneof("value")
    if which == "bytes":
        return np.frombuffer(data.bytes.values, element.dtype).reshape(shape)
    values = getattr(data, which).values if which else ()
    with np.errstate(over="raise"):
        return np.array(list(values), element.dtype).reshape(shape)


def _type(tensor: Any) -> TensorType:
    shape = tuple(
        int(dimension.constant.size) if dimension.WhichOneof("dimension") == "constant" else None
        for dimension in tensor.dimensions
    )
    return TensorType(MIL_TYPES.get(tensor.dataType), shape)
