"""What rules check: a package's functions with their flexible inputs, and the size of its weights.

Of the weights only scales are read, if a rule needs them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.schema import HeadShard, Manifest, Shard, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import (
    FileReference,
    Function,
    Operation,
    Packed,
    TensorType,
    read_functions,
    read_package,
)
from anespec.runtime.backends.portable.program import WeightFiles
from anespec.system.formatting import shape_text

Stored = Callable[[FileReference], NDArray[Any] | Packed]
"""Returns a constant of a weight file; raises ArtifactError if the file is damaged."""

DEFAULT_ROWS = 1
"""T of a range's default shape, if no manifest says otherwise."""

NO_DEVICE = ("const", "constexpr_")
"""The prefixes of kinds without a device in a compute plan: constants and their decompression."""


def has_device(kind: str) -> bool:
    """Return whether an operation of this kind computes; constants do not, and no total counts them."""
    return not kind.startswith(NO_DEVICE)


@dataclass(frozen=True)
class Value:
    """A named tensor."""

    name: str
    type: TensorType


class Flexibility(StrEnum):
    """Whether and how an input's shape may vary."""

    FIXED = "fixed"
    RANGE = "range"
    ENUMERATED = "enumerated"


@dataclass(frozen=True)
class Feature:
    """An input as the package describes it: its default shape, and each dimension's bounds if it varies."""

    name: str
    default: tuple[int, ...]
    flexibility: Flexibility = Flexibility.FIXED
    bounds: tuple[tuple[int, int], ...] = ()

    @property
    def varying_defaults(self) -> tuple[int, ...]:
        """Return the default sizes of the dimensions that vary."""
        return tuple(
            size for size, (low, high) in zip(self.default, self.bounds, strict=False) if low != high
        )


@dataclass(frozen=True)
class FunctionView:
    """One function, its inputs as the package describes them, and its T; None if that is unknown."""

    function: Function
    features: tuple[Feature, ...]
    rows: int | None = None

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.function.name

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Return the type of every value."""
        return self.function.types

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return self.function.outputs

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Return the inputs, without states."""
        return self._values(self.function.inputs)

    @cached_property
    def states(self) -> tuple[Value, ...]:
        """Return the states."""
        return self._values(self.function.states)

    @cached_property
    def all_operations(self) -> tuple[Operation, ...]:
        """Return every operation, those of nested blocks after their owner."""
        return tuple(_walk(self.function.operations))

    @cached_property
    def compute(self) -> tuple[Operation, ...]:
        """Return the operations that a device executes."""
        return tuple(op for op in self.all_operations if has_device(op.kind))

    @cached_property
    def producers(self) -> Mapping[str, Operation]:
        """Return the operation that makes each value."""
        return {name: op for op in self.all_operations for name in op.outputs}

    def made(self, op: Operation) -> tuple[Value, ...]:
        """Return the tensors that an operation makes."""
        return self._values(op.outputs)

    def flowing(self, op: Operation) -> tuple[Value, ...]:
        """Return the inputs and outputs of an operation, without constants."""
        taken = [name for name in op.named_inputs() if name in self.types and not self.is_constant(name)]
        return (*self._values(taken), *self.made(op))

    def is_constant(self, name: str) -> bool:
        """Return whether a value is a constant, plain or compressed."""
        producer = self.producers.get(name)
        return name in self.function.constants or (producer is not None and not has_device(producer.kind))

    def integer(self, op: Operation, key: str, default: int) -> int:
        """Return an integer parameter of an operation."""
        for name in op.named_inputs(key)[:1]:
            value = self.function.constants.get(name)
            if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
                return int(value.flat[0])
        return default

    def described(self, op: Operation) -> str:
        """Return an operation in words: its kind, its name and the shapes of its outputs."""
        shapes = " ".join(shape_text(value.type.shape) for value in self.made(op))
        return f"{op.kind} {op.name} {shapes}".rstrip()

    def _values(self, names: Iterable[str]) -> tuple[Value, ...]:
        return tuple(Value(name, self.types[name]) for name in names)


@dataclass(frozen=True)
class ShardView:
    """One package.

    `block` is the T of a decoding pass, `default_rows` that of a range's default shape. `weight_bytes` counts
    the weight files. If `stored` is None, no weight file can be read.
    """

    name: str
    sha256: str
    block: int
    is_head: bool
    functions: tuple[FunctionView, ...]
    weight_bytes: int
    stored: Stored | None = None
    default_rows: int = DEFAULT_ROWS

    def numbers(self, function: FunctionView, name: str) -> NDArray[Any] | None:
        """Return a constant's plain numbers; None if it has none, or they cannot be read.

        Raises:
            ArtifactError: the weight file is damaged.
        """
        value = function.function.constants.get(name)
        if isinstance(value, FileReference):
            value = None if self.stored is None else self.stored(value)
        return value if isinstance(value, np.ndarray) else None


@dataclass(frozen=True)
class ArtifactView:
    """All shards of an artifact, and its target if that is known."""

    shards: tuple[ShardView, ...]
    target: Target | None = None


def view_artifact(artifact: Artifact) -> ArtifactView:
    """Return the view of every shard of an artifact.

    Raises:
        ArtifactError: a shard is missing, damaged or not an ML program.
    """
    manifest = artifact.manifest
    return ArtifactView(
        tuple(view_declared(manifest, shard, artifact.shard_path(shard)) for shard in manifest.shards),
        manifest.target,
    )


def view_declared(manifest: Manifest, shard: Shard, package: Path) -> ShardView:
    """Return the view of a shard's package with the functions of its manifest; raises like
    `view_artifact`."""
    read, is_head = read_package(package), isinstance(shard, HeadShard)
    view = _view(read.functions, read.description, shard.path, shard.sha256, manifest.block, is_head)
    rows = {each.name: each.rows or manifest.default_rows for each in manifest.package_functions(shard)}
    return replace(
        view,
        default_rows=manifest.default_rows,
        functions=tuple(replace(each, rows=rows.get(each.name)) for each in view.functions),
        stored=WeightFiles(read).constant,
    )


def view_package(package: Path, name: str, sha256: str, block: int, is_head: bool = False) -> ShardView:
    """Return the view of one package, whose default shape has one row; raises like `view_artifact`."""
    read = read_package(package)
    view = _view(read.functions, read.description, name, sha256, block, is_head)
    return replace(view, stored=WeightFiles(read).constant)


def view_model(model: Any, name: str, sha256: str, block: int, is_head: bool = False) -> ShardView:
    """Return the view of a protobuf `Model` that is an ML program."""
    return _view(read_functions(model), model.description, name, sha256, block, is_head)


def _view(
    functions: Mapping[str, Function],
    description: Any,
    name: str,
    sha256: str,
    block: int,
    is_head: bool,
) -> ShardView:
    views = tuple(
        FunctionView(
            function,
            tuple(_feature(raw) for raw in _described(description, function.name)),
        )
        for function in functions.values()
    )
    constants = (constant for function in functions.values() for constant in function.constants.values())
    stored = {(c.file, c.offset): c.type.nbytes for c in constants if isinstance(c, FileReference)}
    return ShardView(name, sha256, block, is_head, views, sum(stored.values()))


def _described(description: Any, function: str) -> Iterable[Any]:
    """Return a function's inputs; a package of one function describes them without naming it."""
    named = [part for part in description.functions if part.name == function]
    inputs: Iterable[Any] = named[0].input if named else description.input
    return inputs


def _feature(raw: Any) -> Feature:
    array = raw.type.multiArrayType
    flexible = array.WhichOneof("ShapeFlexibility")
    return Feature(
        name=str(raw.name),
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
