"""Build one shard unit: its package, and its entry in the manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from anespec.convert.graph.functions import ProgramScope, ShardProgram
from anespec.convert.graph.per_layer import PerLayerMix
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import head_inputs, head_shard, layer_shard
from anespec.convert.layers import (
    OnStored,
    head_plan,
    head_weights,
    hidden_norm,
    layer_shard_plan,
    layer_weights,
    per_layer_mix,
)
from anespec.convert.package import OnWritten, WrittenPackage, serialised_model, write_package
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import HeadUnit, LayersUnit, ShardUnit
from anespec.manifests.channel_layout import channel_shape
from anespec.manifests.graph_choices import RangeDefault
from anespec.manifests.schema import HIDDEN_OUT, HeadShard, LayerShard, Shard, StoredTensor, TensorSpec
from anespec.system.interrupts import interrupts_held_back


def build_unit(
    plan: ConversionPlan, unit: ShardUnit, path: Path, recipe: str, threads: int, on_written: OnWritten
) -> LayerShard | HeadShard:
    """Write the package to `path` with the given number of threads; return its entry in the manifest.

    `on_written` is called with the number of weight bytes that were written since the last call.

    Raises:
        GGUFError, UnsupportedModelError: a tensor cannot be converted.
        StorageError: the disk is full, or the package cannot be written.
    """
    match unit:
        case LayersUnit():
            return _build_layers(plan, unit.indices, path, recipe, threads, on_written)
        case HeadUnit():
            return _build_head(plan, unit, path, recipe, threads, on_written)


def unit_model(plan: ConversionPlan, unit: ShardUnit) -> bytes:
    """Return the serialised Core ML model of a shard, without its weight file. No projection is read.

    Raises:
        GGUFError, UnsupportedModelError: a norm or a bias cannot be converted.
    """
    match unit:
        case LayersUnit():
            return layers_model(plan, unit.indices)
        case HeadUnit():
            return serialised_model(_head_program(plan, head_weights(plan, unit.tokens)))


def layers_model(plan: ConversionPlan, indices: Sequence[int]) -> bytes:
    """Return the serialised Core ML model of the given layers, in order; they need not be consecutive.

    If they are not, only its operations and shapes are meaningful. If a layer attends to another layer's
    K/V, that layer must be among them. Raises like `unit_model`.
    """
    mix = per_layer_mix(plan, range(len(indices)))
    return serialised_model(_layers_program(plan, indices, mix, lambda _: None))


def _layers_program(
    plan: ConversionPlan, indices: Sequence[int], mix: PerLayerMix | None, on_stored: OnStored
) -> ShardProgram:
    weights = [layer_weights(plan, plan.model.facts.layers[i], on_stored) for i in indices]
    layers = layer_shard_plan(plan, indices)
    with interrupts_held_back():
        return layer_shard(layers, weights, _scope(plan), mix)


def _head_program(plan: ConversionPlan, slices: Mapping[str, Projection]) -> ShardProgram:
    final_norm = hidden_norm(plan.model, plan.model.final_norm)
    with interrupts_held_back():
        return head_shard(head_plan(plan), final_norm, slices, _scope(plan, head=True))


def _build_layers(
    plan: ConversionPlan, indices: range, path: Path, recipe: str, threads: int, on_written: OnWritten
) -> LayerShard:
    stored: list[StoredTensor] = []
    layers = layer_shard_plan(plan, indices)
    mix = per_layer_mix(plan, indices, stored.append)
    program = _layers_program(plan, indices, mix, stored.append)
    written = write_package(program, path, threads, on_written)
    outputs = (TensorSpec(name=HIDDEN_OUT, shape=channel_shape(layers.hidden_size)),)
    return LayerShard(
        **dict(_described(stored, written, path, recipe, layers.inputs, outputs)),
        first_layer=indices.start,
        end_layer=indices.stop,
        states=layers.states,
        per_layer_input=layers.per_layer_input,
        folds=layers.folds,
    )


def _build_head(
    plan: ConversionPlan, unit: HeadUnit, path: Path, recipe: str, threads: int, on_written: OnWritten
) -> HeadShard:
    stored: list[StoredTensor] = []
    slices = head_weights(plan, unit.tokens, stored.append)
    program = _head_program(plan, slices)
    written = write_package(program, path, threads, on_written)
    outputs = tuple(
        TensorSpec(name=name, shape=channel_shape(projection.weight.source.shape[0]))
        for name, projection in slices.items()
    )
    return HeadShard(
        **dict(_described(stored, written, path, recipe, head_inputs(plan.model.facts.hidden_size), outputs)),
        first_token=unit.tokens.start,
        end_token=unit.tokens.stop,
    )


def _scope(plan: ConversionPlan, *, head: bool = False) -> ProgramScope:
    passes = plan.passes
    functions = (passes.head_functions if head else None) or passes.functions
    is_one = passes.range_default is RangeDefault.ONE
    return ProgramScope(passes.t_min if is_one else plan.options.block, passes.t_max, functions)


def _described(
    stored: Sequence[StoredTensor],
    written: WrittenPackage,
    path: Path,
    recipe: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Shard:
    """Return the fields that entries of all kinds of shards share, for the package at `path`."""
    return Shard(
        path=f"{path.parent.name}/{path.name}",
        bytes=written.bytes,
        sha256=written.sha256,
        recipe=recipe,
        tensors=tuple(stored),
        inputs=inputs,
        outputs=outputs,
    )
