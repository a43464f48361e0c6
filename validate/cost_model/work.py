"""What a pass of the block has to do, counted in the graph that its shards hold: bytes and operations."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from anespec.convert.build import layers_model, unit_model
from anespec.convert.graph.shards import LayerPlan
from anespec.convert.layers import layer_shard_plan
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.topology import head_slices
from anespec.convert.shard_units import HeadUnit, LayersUnit, shard_units
from anespec.manifests.schema import NEW_ROWS, LayerShard, Pool, StateSpec, WeightFormat
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.mil_package import (
    Function,
    Operation,
    model_classes,
    read_functions,
    read_package,
)
from anespec.validate.residency.shard_view import has_device

if TYPE_CHECKING:
    from anespec.convert.planning.plan import ConversionPlan

FP16_BYTES = 2
PALETTES = frozenset({WeightFormat.LUT8, WeightFormat.LUT6, WeightFormat.LUT4})
VIEWS = frozenset({"read_state", "split", "slice_by_index", "reshape", "squeeze", "expand_dims"})
"""Operations that are taken to name a part of what is there, and to move nothing."""


@dataclass(frozen=True)
class PassWork:
    """What one pass over `rows` rows has to do; packages of several functions count the block's alone.

    `palette_bytes` are the part of `weight_bytes` that is stored as palettes. `kv_moved` are the bytes of
    keys and values that all operations read and write, if each reads its inputs from memory and writes its
    outputs there: an upper bound, since a compiler may fuse. `kv_written` are the bytes put into the slots.
    `operations` are those that a device executes, `dispatches` the packages.
    """

    rows: int
    weight_bytes: int
    palette_bytes: int
    kv_moved: int
    kv_written: int
    operations: int
    dispatches: int

    @classmethod
    def of_plan(cls, plan: "ConversionPlan") -> Self:
        """Of the artifact that would be built, without reading a projection; see `planned_shards`.

        Raises:
            GGUFError, UnsupportedModelError: a norm or a bias cannot be converted.
        """
        from anespec.convert.weights.encoding import stored_bytes

        stored = [(each.weight_format, stored_bytes(each, shape)) for each, shape in plan.encodings()]
        return cls._of(plan.options.block, stored, planned_shards(plan))

    @classmethod
    def of_artifact(cls, artifact: Artifact) -> Self:
        """Of an artifact as it is.

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
        return cls._of(manifest.block, [(each.weights, each.bytes) for each in manifest.tensors], shards)

    @classmethod
    def _of(cls, rows: int, stored: list[tuple[WeightFormat, int]], shards: "Sequence[ShardWork]") -> Self:
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
    def of(cls, function: Function, states: Iterable[StateSpec], pools: Iterable[Pool], rows: int) -> Self:
        """Count in one function; `states` are the shard's, wherever they are held."""
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
    """Goes once through a function's operations."""

    def __init__(self, function: Function, slots: set[int], head_dims: set[int], rows: int) -> None:
        self.function, self.slots, self.head_dims, self.rows = function, slots, head_dims, rows

    def totals(self) -> tuple[int, int, int]:
        """Bytes of keys and values moved, those of them put into slots, and operations."""
        operations = tuple(_walk(self.function.operations))
        # The host puts the new rows of what it holds into their slots once the pass is over.
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
        """Whether a value holds numbers for every slot, of every dimension of a head."""
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


# Count the work of shards that are planned: in graphs of few layers, since layers of a kind are alike.
#
# A shard's work is that of what its layers share, and a part for each layer that is the same for all layers
# of
# a kind. So the shard with one layer of each kind is counted, and for each kind that shard with one layer
# more;
# what the additional layer added is multiplied. A test compares the result with the whole graph's.


def planned_shards(plan: ConversionPlan) -> tuple[ShardWork, ...]:
    """Return the work of every shard that the plan would build, in the order of a pass.

    Raises:
        GGUFError, UnsupportedModelError: a norm or a bias cannot be converted.
    """
    counts = _Counts(plan)
    return tuple(
        counts.of_layers(unit.indices) if isinstance(unit, LayersUnit) else counts.of_head(unit)
        for unit in shard_units(plan)
    )


class _Counts:
    """Counts of a plan's graphs; equal graphs are built once."""

    def __init__(self, plan: ConversionPlan) -> None:
        self._plan = plan
        self._known: dict[Hashable, ShardWork] = {}

    @cached_property
    def _layers(self) -> Sequence[LayerPlan]:
        return layer_shard_plan(self._plan, range(len(self._plan.model.facts.layers))).layers

    @cached_property
    def _kinds(self) -> Sequence[Hashable]:
        """For each layer, what the part of a graph that belongs to it follows from."""
        tensors: dict[int, set[str]] = {layer.index: set() for layer in self._layers}
        for name in self._plan.model.file.tensors:
            part, _, rest = name.removeprefix("blk.").partition(".")
            if name.startswith("blk.") and part.isdecimal() and int(part) in tensors:
                tensors[int(part)].add(rest)
        return [
            (replace(each, index=0, kv_layer=int(each.own_kv is None)), frozenset(tensors[each.index]))
            for each in self._layers
        ]

    def of_head(self, unit: HeadUnit) -> ShardWork:
        """Count a head shard."""
        sizes = tuple(len(part) for part in head_slices(unit.tokens))
        if sizes not in self._known:
            self._known[sizes] = self._in_model(unit_model(self._plan, unit), ())
        return self._known[sizes]

    def of_layers(self, indices: Sequence[int]) -> ShardWork:
        """Count a shard of layers, in as few layers as tell the same."""
        first: dict[Hashable, int] = {}
        for index in indices:
            first.setdefault(self._kinds[index], index)
        sample = self._with_sources(first.values())
        missing = Counter(self._kinds[i] for i in indices) - Counter(self._kinds[i] for i in sample)
        larger = {
            kind: self._with_sources(
                [*sample, next(i for i in indices if i not in sample and self._kinds[i] == kind)]
            )
            for kind in missing
        }
        built = len(sample) + sum(map(len, larger.values()))
        if built >= len(indices) or any(len(each) > len(sample) + 1 for each in larger.values()):
            return self._whole(indices)
        work = self._whole(sample)
        for kind, count in missing.items():
            work += (self._whole(larger[kind]) + self._whole(sample) * -1) * count
        return work

    def _with_sources(self, indices: Iterable[int]) -> tuple[int, ...]:
        """These layers and those whose K/V they attend to, in their order."""
        return tuple(sorted({source for i in indices for source in (i, self._layers[i].kv_layer)}))

    def _whole(self, indices: Sequence[int]) -> ShardWork:
        """Count in the graph of exactly these layers."""
        sources = [list(indices).index(self._layers[i].kv_layer) for i in indices]
        graph = tuple(zip((self._kinds[i] for i in indices), sources, strict=True))
        if graph not in self._known:
            model = layers_model(self._plan, indices)
            self._known[graph] = self._in_model(model, layer_shard_plan(self._plan, indices).states)
        return self._known[graph]

    def _in_model(self, serialised: bytes, states: tuple[StateSpec, ...]) -> ShardWork:
        model = model_classes().Model()
        model.ParseFromString(serialised)
        function = block_function(read_functions(model), self._plan.passes.functions[0].name)
        return ShardWork.of(function, states, self._plan.pools, self._plan.options.block)
