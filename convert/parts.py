"""The parts of an artifact that are built one by one: each becomes a package and its manifest entry."""

from dataclasses import dataclass
from pathlib import Path

from anespec.convert.graph.shards import ProgramScope, head_inputs, head_shard, layer_shard
from anespec.convert.layers import head_plan, head_weights, layer_weights, per_layer_mix, shard_plan
from anespec.convert.package import write_package
from anespec.convert.plan import ConversionPlan
from anespec.manifests.schema import HIDDEN_OUT, HeadShard, LayerShard, Shard, TensorSpec
from anespec.manifests.store import package_bytes, package_sha256


@dataclass(frozen=True)
class LayersPart:
    """Consecutive layers."""

    indices: range

    @property
    def name(self) -> str:
        """The package's name, without its ending."""
        return f"layers_{self.indices.start:02d}_{self.indices.stop:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Stored bytes of its projections."""
        return sum(plan.layer_bytes(plan.model.facts.layers[index]) for index in self.indices)

    def build(self, plan: ConversionPlan, path: Path, recipe: str) -> LayerShard:
        """Write the package to `path` and describe it.

        Raises:
            GGUFError, UnsupportedModelError: a tensor cannot be converted.
            StorageError: the disk is full or refuses.
        """
        model, weight_format = plan.model, plan.options.weights
        weights = [layer_weights(model, model.facts.layers[index], weight_format) for index in self.indices]
        layers, mix = shard_plan(plan, self.indices), per_layer_mix(model, self.indices, weight_format)
        write_package(layer_shard(layers, weights, _scope(plan), mix), path)
        outputs = (TensorSpec(name=HIDDEN_OUT, shape=(1, layers.d, None, 1)),)
        return LayerShard(
            **dict(_described(plan, path, recipe, layers.inputs, outputs)),
            first_layer=self.indices.start,
            end_layer=self.indices.stop,
            states=layers.states,
            per_layer_input=layers.per_layer_input,
        )


@dataclass(frozen=True)
class HeadPart:
    """The final norm and the output projection's rows of some tokens."""

    number: int
    tokens: range

    @property
    def name(self) -> str:
        """The package's name, without its ending."""
        return f"head_{self.number:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Stored bytes of its projection."""
        return plan.head_bytes() * len(self.tokens) // plan.model.facts.vocabulary

    def build(self, plan: ConversionPlan, path: Path, recipe: str) -> HeadShard:
        """Write the package to `path` and describe it; raises like `LayersPart.build`."""
        final_norm, weights = head_weights(plan.model, self.tokens, plan.options.weights)
        output = f"logits_{self.number}"
        write_package(head_shard(head_plan(plan), final_norm, weights, output, _scope(plan)), path)
        outputs = (TensorSpec(name=output, shape=(1, len(self.tokens), None, 1)),)
        return HeadShard(
            **dict(_described(plan, path, recipe, head_inputs(plan.model.facts.d), outputs)),
            first_token=self.tokens.start,
            end_token=self.tokens.stop,
        )


Part = LayersPart | HeadPart


def parts_of(plan: ConversionPlan) -> tuple[Part, ...]:
    """Everything that a run builds, layers first."""
    layers = (LayersPart(indices) for indices in plan.topology.layer_ranges)
    heads = (HeadPart(number, tokens) for number, tokens in enumerate(plan.topology.heads))
    return (*layers, *heads)


def _scope(plan: ConversionPlan) -> ProgramScope:
    return ProgramScope(plan.options.block, plan.t_max)


def _described(
    plan: ConversionPlan,
    path: Path,
    recipe: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Shard:
    """What every entry says of the package at `path`, which lies in the artifact's folder of shards."""
    return Shard(
        path=f"{path.parent.name}/{path.name}",
        bytes=package_bytes(path),
        sha256=package_sha256(path),
        recipe=recipe,
        weights=plan.options.weights,
        inputs=inputs,
        outputs=outputs,
    )
