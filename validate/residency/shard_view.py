"""What a rule looks at: a package's functions, operations and types, and how large its weights are.

The portable backend's loader makes ready to execute; this view keeps what it drops: flexible
shapes, every function, nested blocks, and types. No weight is read.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from anespec.manifests.errors import ArtifactError
from anespec.manifests.residency import shape_text
from anespec.manifests.schema import HeadShard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.program import read_model

# MIL.proto's DataType.
_MIL_TYPES: Mapping[int, str] = {
    1: "bool", 2: "string", 10: "fp16", 11: "fp32", 12: "fp64", 13: "bf16", 21: "int8", 22: "int16",
    23: "int32", 24: "int64", 25: "int4", 31: "uint8", 32: "uint16", 33: "uint32", 34: "uint64",
    35: "uint4", 36: "uint2", 37: "uint1", 38: "uint6", 39: "uint3", 40: "fp8e4m3fn", 41: "fp8e5m2",
}  # fmt: skip
_BITS: Mapping[str, int] = {
    "bool": 8, "string": 0, "fp16": 16, "fp32": 32, "fp64": 64, "bf16": 16, "int8": 8, "int16": 16,
    "int32": 32, "int64": 64, "int4": 4, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "uint4": 4, "uint2": 2, "uint1": 1, "uint6": 6, "uint3": 3, "fp8e4m3fn": 8, "fp8e5m2": 8,
}  # fmt: skip
# FeatureTypes.proto's ArrayDataType.
_ARRAY_TYPES: Mapping[int, str] = {
    65552: "fp16", 65568: "fp32", 65600: "fp64", 131080: "int8", 131104: "int32",
}  # fmt: skip

NO_DEVICE = ("const", "constexpr_")
"""How kinds begin that a compute plan gives no device: constants and what decompresses them."""

MOST_INTEGERS = 16
"""A constant of more integers than this is not a parameter."""


def has_device(kind: str) -> bool:
    """Whether an operation of this kind computes; constants do not and stay out of every total."""
    return not kind.startswith(NO_DEVICE)


@dataclass(frozen=True)
class TensorType:
    """A dimension of None follows T."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def bits(self) -> int:
        """Bits of one element as stored."""
        return _BITS.get(self.dtype, 32)

    @property
    def bytes(self) -> int:
        """Bytes as stored; None counts as 1."""
        return -(-self.bits * math.prod(size or 1 for size in self.shape) // 8)

    def __str__(self) -> str:
        return f"{self.dtype} {shape_text(self.shape)}"


@dataclass(frozen=True)
class Value:
    """A named tensor."""

    name: str
    type: TensorType


class Flexibility(StrEnum):
    """How an input's shape may vary."""

    FIXED = "fixed"
    RANGE = "range"
    ENUMERATED = "enumerated"


@dataclass(frozen=True)
class Feature:
    """An input as the package describes it: its default shape, and each dimension's bounds if it varies."""

    name: str
    dtype: str
    default: tuple[int, ...]
    flexibility: Flexibility = Flexibility.FIXED
    bounds: tuple[tuple[int, int], ...] = ()

    @property
    def varying_defaults(self) -> tuple[int, ...]:
        """The default sizes of the dimensions that vary."""
        return tuple(
            size for size, (low, high) in zip(self.default, self.bounds, strict=False) if low != high
        )


@dataclass(frozen=True)
class Operation:
    """One operation; inputs are names of values. `name` is its first output, or says what it writes."""

    kind: str
    name: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[Value, ...]
    blocks: tuple[tuple["Operation", ...], ...] = ()

    def __str__(self) -> str:
        shapes = " ".join(shape_text(value.type.shape) for value in self.outputs)
        return f"{self.kind} {self.name} {shapes}".rstrip()

    def named_inputs(self, *keys: str) -> tuple[str, ...]:
        """The values of some inputs, or of all."""
        chosen = keys or tuple(self.inputs)
        return tuple(name for key in chosen for name in self.inputs.get(key, ()))


@dataclass(frozen=True)
class FunctionView:
    """One function. `types` has every value, `constants` what is constant, `integers` small parameters."""

    name: str
    inputs: tuple[Value, ...]
    states: tuple[Value, ...]
    features: tuple[Feature, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: frozenset[str]
    integers: Mapping[str, tuple[int, ...]]

    @cached_property
    def all_operations(self) -> tuple[Operation, ...]:
        """Every operation, those of nested blocks after their owner."""
        return tuple(_walk(self.operations))

    @cached_property
    def compute(self) -> tuple[Operation, ...]:
        """The operations that a device executes."""
        return tuple(op for op in self.all_operations if has_device(op.kind))

    @cached_property
    def producers(self) -> Mapping[str, Operation]:
        """Which operation makes a value."""
        return {value.name: op for op in self.all_operations for value in op.outputs}

    def flowing(self, op: Operation) -> tuple[Value, ...]:
        """The tensors that an operation takes and makes, constants left out."""
        taken = [
            Value(name, self.types[name])
            for name in op.named_inputs()
            if name in self.types and not self.is_constant(name)
        ]
        return (*taken, *op.outputs)

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant, stored plainly or compressed."""
        producer = self.producers.get(name)
        return name in self.constants or (producer is not None and not has_device(producer.kind))

    def integer(self, op: Operation, key: str, default: int) -> int:
        """An integer parameter of an operation."""
        values = [self.integers.get(name, ()) for name in op.named_inputs(key)]
        return values[0][0] if values and values[0] else default


@dataclass(frozen=True)
class ShardView:
    """One package. `block` is the T of a decoding pass; `weight_bytes` are those in weight files."""

    name: str
    sha256: str
    block: int
    is_head: bool
    functions: tuple[FunctionView, ...]
    weight_bytes: int


@dataclass(frozen=True)
class ArtifactView:
    """All shards of an artifact."""

    shards: tuple[ShardView, ...]


def view_artifact(artifact: Artifact) -> ArtifactView:
    """Look at every shard of an artifact.

    Raises:
        ArtifactError: a shard is missing, damaged or not an ML program.
    """
    manifest = artifact.manifest
    return ArtifactView(
        tuple(
            view_package(
                artifact.shard_path(shard),
                shard.path,
                shard.sha256,
                manifest.block,
                isinstance(shard, HeadShard),
            )
            for shard in manifest.shards
        )
    )


def view_package(package: Path, name: str, sha256: str, block: int, is_head: bool = False) -> ShardView:
    """Look at one package; raises like `view_artifact`."""
    model, _ = read_model(package)
    try:
        return view_model(model, name, sha256, block, is_head)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{package}: its model file is damaged ({error}); convert the model again"
        ) from error


def view_model(model: Any, name: str, sha256: str, block: int, is_head: bool = False) -> ShardView:
    """Look at a protobuf `Model` that is an ML program."""
    readers = [
        _FunctionReader(function_name, function, _described(model.description, function_name))
        for function_name, function in sorted(model.mlProgram.functions.items())
    ]
    functions = tuple(reader.view() for reader in readers)
    blobs = {place: size for reader in readers for place, size in reader.blobs.items()}
    return ShardView(name, sha256, block, is_head, functions, sum(blobs.values()))


def _described(description: Any, function: str) -> Iterable[Any]:
    """A function's inputs as described; a package of one function describes them without naming it."""
    named = [part for part in description.functions if part.name == function]
    inputs: Iterable[Any] = named[0].input if named else description.input
    return inputs


class _FunctionReader:
    """Turns one protobuf function into a view, collecting what its values are on the way."""

    def __init__(self, name: str, function: Any, described: Iterable[Any]) -> None:
        self.name = name
        self.function = function
        self.described = described
        self.types: dict[str, TensorType] = {}
        self.constants: set[str] = set()
        self.integers: dict[str, tuple[int, ...]] = {}
        self.blobs: dict[tuple[str, int], int] = {}

    def view(self) -> FunctionView:
        block = self.function.block_specializations[self.function.opset]
        inputs: list[Value] = []
        states: list[Value] = []
        for raw in self.function.inputs:
            is_state = raw.type.WhichOneof("type") == "stateType"
            value = self._value(raw.name, raw.type.stateType.wrappedType if is_state else raw.type)
            (states if is_state else inputs).append(value)
        operations = tuple(self._operation(raw) for raw in block.operations)
        return FunctionView(
            name=self.name,
            inputs=tuple(inputs),
            states=tuple(states),
            features=tuple(_feature(raw) for raw in self.described),
            operations=operations,
            outputs=tuple(block.outputs),
            types=self.types,
            constants=frozenset(self.constants),
            integers=self.integers,
        )

    def _operation(self, raw: Any) -> Operation:
        outputs = tuple(self._value(value.name, value.type) for value in raw.outputs)
        inputs = {key: self._arguments(key, raw, binding) for key, binding in raw.inputs.items()}
        name = outputs[0].name if outputs else " ".join(inputs.get("input", ()))
        # Before iOS 18, what decompresses a constant held it in attributes instead of inputs.
        for key, value in raw.attributes.items():
            if key == "name":
                continue
            constant = name if raw.type == "const" else f"{name}/{key}"
            self._constant(constant, value)
            inputs[key] = (constant,)
        return Operation(
            kind=str(raw.type),
            name=name,
            inputs={} if raw.type == "const" else inputs,
            outputs=outputs,
            blocks=tuple(tuple(self._operation(nested) for nested in b.operations) for b in raw.blocks),
        )

    def _arguments(self, key: str, raw: Any, binding: Any) -> tuple[str, ...]:
        """The values of one input by name; one that is written out is named after its operation."""
        names = []
        for index, argument in enumerate(binding.arguments):
            if argument.WhichOneof("binding") == "name":
                names.append(str(argument.name))
            else:
                owner = raw.outputs[0].name if raw.outputs else raw.type
                names.append(f"{owner}/{key}/{index}")
                self._constant(names[-1], argument.value)
        return tuple(names)

    def _constant(self, name: str, value: Any) -> None:
        self.constants.add(name)
        kind = self._value(name, value.type).type
        if value.WhichOneof("value") == "blobFileValue":
            self.blobs[value.blobFileValue.fileName, value.blobFileValue.offset] = kind.bytes
            return
        tensor = value.immediateValue.tensor
        which = tensor.WhichOneof("value")
        if which in ("ints", "longInts"):
            numbers = getattr(tensor, which).values
            self.integers[name] = tuple(int(number) for number in numbers[:MOST_INTEGERS])

    def _value(self, name: str, kind: Any) -> Value:
        tensor = kind.tensorType
        shape = tuple(
            int(dimension.constant.size) if dimension.WhichOneof("dimension") == "constant" else None
            for dimension in tensor.dimensions
        )
        self.types[name] = TensorType(_MIL_TYPES.get(tensor.dataType, f"type {tensor.dataType}"), shape)
        return Value(name, self.types[name])


def _feature(raw: Any) -> Feature:
    array = raw.type.multiArrayType
    flexible = array.WhichOneof("ShapeFlexibility")
    return Feature(
        name=str(raw.name),
        dtype=_ARRAY_TYPES.get(array.dataType, f"type {array.dataType}"),
        default=tuple(int(size) for size in array.shape),
        flexibility={
            "shapeRange": Flexibility.RANGE,
            "enumeratedShapes": Flexibility.ENUMERATED,
        }.get(flexible, Flexibility.FIXED),
        bounds=tuple((int(size.lowerBound), int(size.upperBound)) for size in array.shapeRange.sizeRanges),
    )


def _walk(operations: Iterable[Operation]) -> Iterator[Operation]:
    for operation in operations:
        yield operation
        for block in operation.blocks:
            yield from _walk(block)
