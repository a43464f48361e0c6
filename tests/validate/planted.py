"""Bugs to plant in the real graph and in its inputs, and what it takes to judge the result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from once import Once

from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.convert.mixers.attention import graph as attention
from anespec.convert.mixers.attention.facts import ATTENTION_OUTPUT
from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import DOWN, SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.channel_layout import ChannelLayout, channel_shape
from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import BACKENDS, circumstances, open_shard, open_verifier
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.pass_inputs import NO_INPUTS, PassInputs
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.runtime.passes import Row
from anespec.validate.golden.figures import SLACK, GoldenVerdict, WeightFigures, golden_verdict
from anespec.validate.golden.gate import ComputedFigures, compare_computed
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.reference_layers import Layer, LayerReader
from anespec.validate.golden.reference_parts import Norm
from anespec.validate.golden.stack_passes import run_prompts
from anespec.validate.golden.stored_weights import StoredWeights

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT.parent / "shared" / "models" / "stories260K.F16.gguf"
EMBEDDED = ROOT / "embedded" / "model.gguf"
PROMPTS = ([1, 403, 407, 261, 378], list(range(3, 24)))
TORCH = "torch"
FORMATS = list(WeightFormat)

needs_stories = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/ beside the repository")


def convert_to(
    folder: Path,
    gguf: Path,
    weights: WeightFormat,
    *,
    target: Target = Target.CPU,
    topology: tuple[int, ...] | None = None,
    sequences: int = 1,
    block: int = 4,
    context: int = 128,
) -> Artifact:
    """A small artifact of a model."""
    options = ConvertOptions(
        target=target,
        block=block,
        context=context,
        sequences=sequences,
        weights=WeightChoice(weights),
        topology=topology,
        head_shards=2,
    )
    with GGUFFile(gguf) as file:
        return Artifact(convert(ConversionPlan(SourceModel(file), options), folder / "artifact").path)


def convert_once(once: Once, folder: Path, gguf: Path, weights: WeightFormat, **options: Any) -> Artifact:
    """`convert_to`, for a converter without a planted fault: a copy of the one artifact of these options."""

    def make(path: Path) -> None:
        convert_to(path.parent, gguf, weights, **options)

    key = (convert_to.__name__, gguf, weights, sorted(options.items()))
    return Artifact(once(folder / "artifact", make, *key))


def golden_of(
    artifact: Artifact,
    gguf: Path,
    backend: str = TORCH,
    pass_inputs: PassInputs | None = None,
    greedy_tokens: int = 8,
) -> GoldenVerdict:
    """The golden gate's verdict; `pass_inputs`, where given, are those of the whole stack too."""
    with GGUFFile(gguf) as file:
        weights = StoredWeights(artifact, file)
        reference = Reference(file, artifact.manifest.context, matrices=weights)
        verifier = open_verifier(artifact, backend, 1)
        verifier.pass_inputs = pass_inputs or verifier.pass_inputs
        computed = compare_computed(
            artifact.manifest,
            reference,
            lambda shard: open_shard(artifact, shard, backend, 1),
            pass_inputs or PassInputs(artifact.manifest),
            verifier.embedding,
            run_prompts(verifier, PROMPTS, greedy_tokens=greedy_tokens),
            arithmetic=BACKENDS[backend].arithmetic,
        )
        verifier.close()
        stored = tuple(weights.figures())
    return _verdict(artifact, backend, stored, computed)


def _verdict(
    artifact: Artifact, backend: str, stored: Sequence[WeightFigures], computed: ComputedFigures
) -> GoldenVerdict:
    slack = SLACK[BACKENDS[backend].arithmetic]
    here = circumstances(artifact, backend, 1)
    return golden_verdict(here, slack, stored, computed.shards, computed.stack, computed.hidden)


def golden_without_stack(
    artifact: Artifact, gguf: Path, backend: str = TORCH, pass_inputs: PassInputs | None = None
) -> GoldenVerdict:
    """The golden gate's verdict on stored weights and on each shard alone, which is half of the work.

    It never passes, since no prompt was run; `failures` says what is wrong.
    """
    manifest = artifact.manifest
    with GGUFFile(gguf) as file, open_embedding(artifact) as own:
        weights = StoredWeights(artifact, file)
        computed = compare_computed(
            manifest,
            Reference(file, manifest.context, matrices=weights),
            lambda shard: open_shard(artifact, shard, backend, 1),
            pass_inputs or PassInputs(manifest),
            own,
            arithmetic=BACKENDS[backend].arithmetic,
        )
        stored = tuple(weights.figures())
    return _verdict(artifact, backend, stored, computed)


def is_red(
    artifact: Artifact, gguf: Path, backend: str = TORCH, pass_inputs: PassInputs | None = None
) -> bool:
    """Whether the golden gate fails; the whole stack is run only if nothing else shows it."""
    if golden_without_stack(artifact, gguf, backend, pass_inputs).failures:
        return True
    return not golden_of(artifact, gguf, backend, pass_inputs).passed


WRITE = kv.write


def flattened_without_transpose(x: Var, layout: ChannelLayout) -> Var:
    """[heads, T, dim] straight to channels: right for T = 1 only."""
    return mb.reshape(x=x, shape=channel_shape(x.shape[1] * x.shape[3], -1, layout))


def written_one_slot_late(
    cell: kv.Cell, new: Var, homes: kv.MaskedHomes, form: KVForm, name: str
) -> kv.UpdatedSlots:
    """Every row's K/V goes to the slot after its own."""
    slots = homes.mask.shape[2]
    rest, last = mb.split(x=homes.mask, split_sizes=[slots - 1, 1], axis=2)
    shifted = mb.concat(values=[last, rest], axis=2)
    return WRITE(cell, new, kv.homes_of(shifted, takes_positions=False), form, name)


def rotated_with_swapped_pair(x: Var, cos: Var, sin: Var, rotary_dim: int, head_dim: int) -> Var:
    """The two members of every pair change places."""
    half, rest = rotary_dim // 2, head_dim - rotary_dim
    sizes = [half, half, rest] if rest else [half, half]
    second, first, *passing = mb.split(x=x, split_sizes=sizes, axis=-1)
    rotated = [
        mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
        mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)),
    ]
    return mb.concat(values=[*rotated, *passing], axis=-1)


def plant_flattening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attention, "merge_heads", flattened_without_transpose)


def plant_wrong_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kv, "write", written_one_slot_late)


def plant_swapped_pair(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attention, "rotate", rotated_with_swapped_pair)


GRAPH_BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "head/token/dimension flattening": plant_flattening,
    "K/V written to the wrong slot": plant_wrong_slot,
    "rope pair swapped": plant_swapped_pair,
}


class AlteredInputs(PassInputs):
    """Pass inputs with one array changed on its way to the shards."""

    def __init__(self, artifact: Artifact, alter: Callable[[Artifact, dict[str, Tensor]], None]) -> None:
        super().__init__(artifact.manifest)
        self.artifact = artifact
        self.alter = alter

    def of(
        self,
        rows: Sequence[Row],
        hidden: Tensor,
        layer_inputs: Mapping[str, Tensor] = NO_INPUTS,
        spans: Sequence[int] | None = None,
    ) -> dict[str, Tensor | Homes]:
        given = super().of(rows, hidden, layer_inputs, spans)
        self.alter(self.artifact, given)
        return given


def see_one_slot_further(artifact: Artifact, given: dict[str, Tensor]) -> None:
    name = artifact.manifest.pools[0].mask_input
    given[name] = np.maximum(given[name], np.roll(given[name], 1, axis=3))


def see_one_slot_less(artifact: Artifact, given: dict[str, Tensor]) -> None:
    """The newest visible slot, a row's own, is hidden, unless it is the only one."""
    name = artifact.manifest.pools[0].mask_input
    shorter = np.minimum(given[name], np.roll(given[name], -1, axis=3))
    alone = (given[name] == 0).sum(axis=3, keepdims=True) < 2
    given[name] = np.where(alone, given[name], shorter)


def write_one_slot_late(artifact: Artifact, given: dict[str, Tensor]) -> None:
    name = artifact.manifest.pools[0].write_input
    given[name] = np.roll(given[name], 1, axis=2)


def swap_two_frequencies(artifact: Artifact, given: dict[str, Tensor]) -> None:
    rope = artifact.manifest.ropes[0]
    for name in (rope.cos_input, rope.sin_input):
        given[name] = np.ascontiguousarray(given[name][:, [1, 0, *range(2, given[name].shape[1])]])


def rotate_as_the_row_before(artifact: Artifact, given: dict[str, Tensor]) -> None:
    for rope in artifact.manifest.ropes:
        for name in (rope.cos_input, rope.sin_input):
            given[name] = np.ascontiguousarray(np.roll(given[name], 1, axis=0))


INPUT_BUGS: dict[str, Callable[[Artifact, dict[str, Tensor]], None]] = {
    "mask shows one slot too many": see_one_slot_further,
    "mask hides the row itself": see_one_slot_less,
    "K/V written to the wrong slot": write_one_slot_late,
    "two rope frequencies swapped": swap_two_frequencies,
    "rope of the row before": rotate_as_the_row_before,
}


def norm_of_the_next_channel(layer: Layer) -> Layer:
    """Every channel is normed by its neighbour's weight, and the last one twice as much."""

    def wrong(norm: Norm) -> Norm:
        if norm.weight is None:
            return replace(norm, epsilon=100 * norm.epsilon)
        weight = np.roll(norm.weight, 1, axis=-1)
        weight[..., -1] *= 2
        return replace(norm, weight=weight)

    return replace(layer, norms={role: wrong(norm) for role, norm in layer.norms.items()})


def one_channel_louder(layer: Layer) -> Layer:
    """One output channel of one projection is half as large again."""
    role = next(role for role in (DOWN, ATTENTION_OUTPUT, *layer.projections) if role in layer.projections)
    projection = layer.projections[role]
    weight = projection.weight.copy()
    weight[len(weight) // 2] *= 1.5
    return replace(layer, projections={**layer.projections, role: replace(projection, weight=weight)})


def heads_swapped(layer: Layer) -> Layer:
    """The outputs of the first and the last quarter of the heads change places."""
    if ATTENTION_OUTPUT not in layer.projections:
        return layer
    projection = layer.projections[ATTENTION_OUTPUT]
    quarter = projection.weight.shape[1] // 4
    columns = np.arange(projection.weight.shape[1])
    columns = np.concatenate((columns[-quarter:], columns[quarter:-quarter], columns[:quarter]))
    weight = projection.weight[:, columns]
    return replace(
        layer, projections={**layer.projections, ATTENTION_OUTPUT: replace(projection, weight=weight)}
    )


REFERENCE_BUGS: dict[str, Callable[[Layer], Layer]] = {
    "norm of the next channel": norm_of_the_next_channel,
    "one channel half as large again": one_channel_louder,
    "heads swapped": heads_swapped,
}
"""Other readings of a layer by the reference, from which a right shard is as far as a wrong one from it."""


@contextmanager
def planted_in_the_reference(bug: str, number: int) -> Iterator[None]:
    """The reference reads one layer wrongly while the block lasts."""
    read = LayerReader.layer

    def wrong(self: LayerReader, index: int) -> Layer:
        layer = read(self, index)
        return REFERENCE_BUGS[bug](layer) if index == number else layer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerReader, "layer", wrong)
        yield
