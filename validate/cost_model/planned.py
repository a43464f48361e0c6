"""Count the work of planned shards in graphs of few layers, since layers of the same kind do the same work.

A shard's work is a shared part plus one part for each layer, equal for all layers of a kind. So one graph has
one layer of each kind, and for each kind another graph has one more layer of it. The difference is multiplied
by the number of layers of that kind. A test compares the result with the count of the whole graph.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from anespec.convert.build import layers_model, unit_model
from anespec.convert.graph.shards import LayerPlan
from anespec.convert.layers import layer_shard_plan
from anespec.convert.mixers.attention.graph import AttentionPlan
from anespec.convert.mixers.delta_net.graph import DeltaPlan
from anespec.convert.mixers.latent.graph import LatentPlan
from anespec.convert.mixers.mamba2.graph import SSDPlan
from anespec.convert.mixers.mixer import MixerPlan
from anespec.convert.mixers.short_conv.graph import ShortConvPlan
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.planning.topology import head_slices
from anespec.convert.shard_units import HeadUnit, LayersUnit, shard_units
from anespec.convert.weights.encoding import stored_bytes
from anespec.manifests.schema import StateSpec
from anespec.runtime.backends.portable.mil_package import (
    model_classes,
    read_functions,
)
from anespec.validate.cost_model.work import PassWork, ShardWork, block_function

if TYPE_CHECKING:
    from anespec.convert.planning.plan import ConversionPlan


def planned_work(plan: ConversionPlan) -> PassWork:
    """Return the work of a pass of the artifact that `plan` would build, without reading a projection.

    Raises:
        GGUFError, UnsupportedModelError: a norm or a bias cannot be converted.
    """
    stored = [(each.weight_format, stored_bytes(each, shape)) for each, shape in plan.encodings()]
    return PassWork.of_shards(plan.options.block, stored, planned_shards(plan))


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
    """The counts of a plan's graphs; equal graphs are built once."""

    def __init__(self, plan: ConversionPlan) -> None:
        self._plan = plan
        self._known: dict[Hashable, ShardWork] = {}

    @cached_property
    def _layers(self) -> Sequence[LayerPlan]:
        return layer_shard_plan(self._plan, range(len(self._plan.model.facts.layers))).layers

    @cached_property
    def _kinds(self) -> Sequence[Hashable]:
        """Return for each layer a key that is equal for layers with the same part of a graph."""
        tensors: dict[int, set[str]] = {layer.index: set() for layer in self._layers}
        for name in self._plan.model.file.tensors:
            part, _, rest = name.removeprefix("blk.").partition(".")
            if name.startswith("blk.") and part.isdecimal() and int(part) in tensors:
                tensors[int(part)].add(rest)
        return [
            (replace(each, index=0, mixers=()), _without_places(each), frozenset(tensors[each.index]))
            for each in self._layers
        ]

    def of_head(self, unit: HeadUnit) -> ShardWork:
        """Count a head shard."""
        sizes = tuple(len(part) for part in head_slices(unit.tokens))
        if sizes not in self._known:
            self._known[sizes] = self._in_model(unit_model(self._plan, unit), ())
        return self._known[sizes]

    def of_layers(self, indices: Sequence[int]) -> ShardWork:
        """Count a shard of layers in the smallest graphs that give the same result."""
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
        """Return these layers and the layers whose K/V they attend to, in their order."""
        return tuple(sorted({source for i in indices for source in (i, _kv_layer(self._layers[i]))}))

    def _whole(self, indices: Sequence[int]) -> ShardWork:
        """Count the graph of exactly these layers."""
        sources = [list(indices).index(_kv_layer(self._layers[i])) for i in indices]
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


def _without_places(layer: LayerPlan) -> tuple[Hashable, ...]:
    """Return the mixers of a layer, equal for layers whose mixers differ only in their places."""
    return tuple(_without_place(mixer) for mixer in layer.mixers)


def _without_place(mixer: MixerPlan) -> Hashable:
    if isinstance(mixer, AttentionPlan):
        return replace(mixer, index=0, kv_layer=int(not mixer.kept))
    assert isinstance(mixer, LatentPlan | ShortConvPlan | SSDPlan | DeltaPlan)
    return replace(mixer, index=0)


def _kv_layer(layer: LayerPlan) -> int:
    """Return the layer to whose K/V a layer attends, or itself."""
    found = (mixer.kv_layer for mixer in layer.mixers if isinstance(mixer, AttentionPlan))
    return next(found, layer.index)
