"""Count the bytes and operations of a pass of the block in the graphs of its shards."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from anespec.manifests.schema import NEW_ROWS, PALETTES, KVCacheGroup, LayerShard, StateSpec, WeightFormat
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import (
    Function,
    Operation,
    read_package,
)
from anespec.validate.residency.shard_view import has_device

FP16_BYTES = 2
VIEWS = frozenset({"read_state", "split", "slice_by_index", "reshape", "squeeze", "expand_dims"})
"""Operations that are assumed to move no bytes, since they only name part of a value."""


@dataclass(frozen=True)
class PassWork:
    """The work of one pass over `rows` rows. Of a package with several functions, the block's is counted.

    `palette_bytes` is the part of `weight_bytes` that is stored as palettes. `kv_moved` are the bytes of keys
    and values that all operations read and write. It is an upper bound: each operation is assumed to read its
    inputs from memory and to write its outputs there, although a compiler may fuse them. `kv_written` are the
    bytes put into slots. `operations` counts those that a device executes, `dispatches` the packages.
    """

    rows: int
    weight_bytes: int
    palette_bytes: int
    kv_moved: int
    kv_written: int
    operations: int
    dispatches: int

    @classmethod
    def of_artifact(cls, artifact: Artifact) -> Self:
        """Count the work of an artifact's shards.

        Raises:
            ArtifactError: a shard is missing, damaged or not an ML program.
        """
        manifest = artifact.manifest
        shards = []
        for shard in manifest.shards:
            functions = read_package(artifact.shard_path(shard)).functions
            function = block_function(functions, manifest.functions[0].name)
            states = shard.states if isinstance(shard, LayerShard) else ()
            shards.append(ShardWork.of(function, states, manifest.pools, manifest.block))
        return cls.of_shards(
            manifest.block, [(each.weights, each.bytes) for each in manifest.tensors], shards
        )

    @classmethod
    def of_shards(
        cls, rows: int, stored: Sequence[tuple[WeightFormat, int]], shards: "Sequence[ShardWork]"
    ) -> Self:
        """Add up the shards of a pass; `stored` has the format and bytes of each stored tensor."""
        return cls(
            rows=rows,
            weight_bytes=sum(size for _, size in stored),
            palette_bytes=sum(size for weight_format, size in stored if weight_format in PALETTES),
            kv_moved=sum(shard.kv_moved for shard in shards),
            kv_written=sum(shard.kv_written for shard in shards),
            operations=sum(shard.operations for shard in shards),
            dispatches=len(shards),
        )


@dataclass(frozen=True)
class ShardWork:
    """One shard's part of a pass; see PassWork."""

    kv_moved: int
    kv_written: int
    operations: int

    @classmethod
    def of(
        cls, function: Function, states: Iterable[StateSpec], pools: Iterable[KVCacheGroup], rows: int
    ) -> Self:
        """Count one function; `states` are the shard's, whether the graph or the host holds them."""
        specs = tuple(states)
        slots = {spec.shape[2] for spec in specs} | {pool.slots for pool in pools if specs}
        sizes = {spec.shape[3] for spec in specs}
        return cls(*_Counting(function, slots, sizes, rows).totals())

    def __add__(self, other: "ShardWork") -> "ShardWork":
        return ShardWork(
            self.kv_moved + other.kv_moved,
            self.kv_written + other.kv_written,
            self.operations + other.operations,
        )

    def __mul__(self, count: int) -> "ShardWork":
        return ShardWork(self.kv_moved * count, self.kv_written * count, self.operations * count)


def block_function(functions: Mapping[str, Function], name: str) -> Function:
    """Return the function that runs the block: the one called `name`, or the only one."""
    return functions[name] if name in functions else next(iter(functions.values()))


class _Counting:
    """Counts the operations of one function."""

    def __init__(self, function: Function, slots: set[int], head_dims: set[int], rows: int) -> None:
        self.function, self.slots, self.head_dims, self.rows = function, slots, head_dims, rows

    def totals(self) -> tuple[int, int, int]:
        """Return the bytes of K/V moved, the bytes of them written to slots, and the number of operations."""
        operations = tuple(_walk(self.function.operations))
        # The host copies new rows of the states that it holds into their slots after the pass.
        hosted = sum(self._bytes(name) for name in self.function.outputs if name.startswith(NEW_ROWS))
        moved, written = hosted, hosted
        in_place = {op.name for op in operations if op.kind == "slice_update"}
        for op in operations:
            if op.kind == "slice_update":
                stored = sum(self._bytes(name) for name in op.named_inputs("update"))
                moved, written = moved + 2 * stored, written + stored
            elif op.kind == "write_state":
                values = [name for name in op.named_inputs("data") if name not in in_place]
                stored = sum(self._bytes(name) for name in values)
                moved, written = moved + 2 * stored, written + stored
            elif op.kind not in VIEWS:
                values = [*op.named_inputs(), *op.outputs]
                moved += sum(self._bytes(name) for name in values if self._spans_slots(name))
        return moved, written, sum(has_device(op.kind) for op in operations)

    def _spans_slots(self, name: str) -> bool:
        """Return whether a value has an entry for every slot and every dimension of a head."""
        kind = self.function.types.get(name)
        if kind is None or len(kind.shape) < 2 or name in self.function.constants:
            return False
        return kind.shape[-2] in self.slots and kind.shape[-1] in self.head_dims

    def _bytes(self, name: str) -> int:
        shape = self.function.types[name].shape
        return FP16_BYTES * math.prod(self.rows if size is None else size for size in shape)


def _walk(operations: Iterable[Operation]) -> Iterator[Operation]:
    for op in operations:
        yield op
        for block in op.blocks:
            yield from _walk(block)
