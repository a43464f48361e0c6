"""The golden gate: green on healthy artifacts of real models, red on every planted bug."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from both_gates import quick_exactness_of
from planted import (
    EMBEDDED,
    FORMATS,
    GRAPH_BUGS,
    INPUT_BUGS,
    PROMPTS,
    STORIES,
    TORCH,
    AlteredInputs,
    convert_to,
    golden_of,
    golden_without_stack,
    is_red,
    needs_stories,
)
from slow import slow_but

from anespec.convert.source.facts import LayerFacts
from anespec.convert.source.model import SourceModel, TensorRows
from anespec.convert.weights.encoding import Floats, Parts, Piece
from anespec.convert.weights.linear import Int8Channel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_shard, open_verifier
from anespec.runtime.backends.embedding import Embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.runner import Inputs, ShardRunner, Tensor
from anespec.system.errors import GoldenGateError
from anespec.validate.gates import golden_gate
from anespec.validate.golden.figures import GoldenVerdict, require_golden
from anespec.validate.golden.gate import compare_computed
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.stack_passes import run_prompts
from anespec.validate.golden.stored_weights import StoredWeights

ONE_OF_EACH_LIMIT = (WeightFormat.FP16, WeightFormat.INT4_BLOCK32)
"""A format for each kind of limits on what a shard computes. The reference computes with the stored weights,
so what a bug changes is as large in every other format, and is judged by the limits of one of these."""


@needs_stories
def test_what_is_sound_is_not_red(stories: dict[WeightFormat, Artifact]) -> None:
    assert not is_red(stories[WeightFormat.FP16], STORIES)


def worst_share(verdict: GoldenVerdict) -> float:
    """The largest error of a layer shard as a share of what it may be."""
    return max(f.error / f.limit for f in verdict.shards if f.layers)


@needs_stories
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch"))
@pytest.mark.parametrize("weights", slow_but(FORMATS, WeightFormat.FP16))
def test_a_trained_model_is_green(
    stories: dict[WeightFormat, Artifact], weights: WeightFormat, backend: str
) -> None:
    verdict = golden_of(stories[weights], STORIES, backend)
    assert verdict.failures == ()
    assert verdict.passed
    assert worst_share(verdict) < 0.7
    require_golden(verdict)


@pytest.mark.slow
def test_a_model_that_magnifies_rounding_is_green(families: Path, tmp_path: Path) -> None:
    """Its scores are not scaled down: embeddings off by 0.0003 move the reference by up to 0.03."""
    gguf = families / "gemma4-ple.gguf"
    artifact = convert_to(tmp_path, gguf, WeightFormat.FP16, sequences=2, context=192)
    verdict = golden_gate(artifact, gguf, "openvino", 1, lambda *_: None)
    assert verdict.failures == ()
    assert max(figures.limit for figures in verdict.stack) > 0.03


@pytest.mark.slow
def test_the_embedded_model_is_green(embedded: Artifact) -> None:
    verdict = golden_of(embedded, EMBEDDED)
    assert verdict.failures == ()
    assert verdict.passed
    assert worst_share(verdict) < 0.7


@needs_stories
@pytest.mark.parametrize("weights", slow_but(ONE_OF_EACH_LIMIT, WeightFormat.FP16))
@pytest.mark.parametrize("bug", GRAPH_BUGS)
def test_a_bug_in_the_graph_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str, weights: WeightFormat
) -> None:
    GRAPH_BUGS[bug](monkeypatch)
    verdict = golden_without_stack(convert_to(tmp_path, STORIES, weights), STORIES)
    assert verdict.failures
    assert worst_share(verdict) > 3
    assert any(f.stray_slots for f in verdict.shards) == ("wrong slot" in bug)
    with pytest.raises(GoldenGateError, match="layers_00_04"):
        require_golden(verdict)


@pytest.mark.slow
def test_flattening_in_the_embedded_model_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GRAPH_BUGS["head/token/dimension flattening"](monkeypatch)
    artifact = convert_to(tmp_path, EMBEDDED, WeightFormat.INT8_CHANNEL, target=Target.MAC)
    verdict = golden_without_stack(artifact, EMBEDDED)
    assert verdict.failures
    assert worst_share(verdict) > 3
    assert not quick_exactness_of(artifact, TORCH).allows_speculation


@needs_stories
@pytest.mark.parametrize("weights", slow_but(ONE_OF_EACH_LIMIT, WeightFormat.FP16))
@pytest.mark.parametrize("bug", INPUT_BUGS)
def test_a_bug_in_the_inputs_is_red(
    stories: dict[WeightFormat, Artifact], bug: str, weights: WeightFormat
) -> None:
    artifact = stories[weights]
    altered = AlteredInputs(artifact, INPUT_BUGS[bug])
    verdict = golden_without_stack(artifact, STORIES, pass_inputs=altered)
    assert verdict.failures
    assert worst_share(verdict) > 3


@pytest.mark.parametrize("bug", slow_but(INPUT_BUGS, "mask hides the row itself"))
def test_a_bug_in_the_inputs_of_the_embedded_model_is_red(embedded: Artifact, bug: str) -> None:
    assert is_red(embedded, EMBEDDED, pass_inputs=AlteredInputs(embedded, INPUT_BUGS[bug]))


class Unsound:
    """A shard whose hidden output is not a number in one place."""

    def __init__(self, inner: ShardRunner) -> None:
        self.inner = inner

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        outputs = self.inner.run(inputs)
        for values in outputs.values():
            values[0, 0, -1, 0] = np.nan
        return outputs

    def read_state(self, name: str) -> Tensor:
        return self.inner.read_state(name)

    def write_state(self, name: str, value: Tensor) -> None:
        self.inner.write_state(name, value)

    def close(self) -> None:
        self.inner.close()


def test_values_that_are_not_finite_are_red(embedded: Artifact) -> None:
    with GGUFFile(EMBEDDED) as file, Embedding(embedded.tokens_path(), embedded.manifest.tokens) as own:
        figures = compare_computed(
            embedded.manifest,
            Reference(file, embedded.manifest.context),
            lambda shard: Unsound(open_shard(embedded, shard, TORCH, 1)),
            PassInputs(embedded.manifest),
            own,
        ).shards
    assert all(f.not_finite for f in figures)
    assert not any(f.within for f in figures)


def test_another_weight_in_one_layer_is_red(embedded: Artifact) -> None:
    """The GGUF has a down projection in layer 0 that is half as large again."""

    class Louder(GGUFFile):
        def rows(self, name, rows=None):  # type: ignore[no-untyped-def]
            values = super().rows(name, rows)
            return values * 1.5 if name == "blk.0.ffn_down.weight" else values

    with Louder(EMBEDDED) as file, Embedding(embedded.tokens_path(), embedded.manifest.tokens) as own:
        figures = compare_computed(
            embedded.manifest,
            Reference(file, embedded.manifest.context),
            lambda shard: open_shard(embedded, shard, TORCH, 1),
            PassInputs(embedded.manifest),
            own,
        ).shards
        stored = list(StoredWeights(embedded, file).figures())
    assert not all(f.within for f in figures)
    assert [w.tensor for w in stored if not w.sound] == ["blk.0.ffn_down.weight"]


def rows_unpermuted(patch: pytest.MonkeyPatch) -> None:
    """Rotating pairs stay beside each other."""
    patch.setattr(SourceModel, "_neox_order", lambda self, layer, heads: np.arange(heads * layer.head_dim))


def next_channel_scales(patch: pytest.MonkeyPatch) -> None:
    """Every channel is stored with its neighbour's scale, and nobody notices while storing."""
    whole = Int8Channel.encode

    def encode(self: Int8Channel, piece: Piece, into: Parts) -> Floats:
        stored = whole(self, piece, into)
        into["scale"][:] = np.roll(into["scale"], 1, axis=0)
        return stored

    patch.setattr(Int8Channel, "encode", encode)


def gate_and_up_swapped(patch: pytest.MonkeyPatch) -> None:
    """Each of the two projections gets the other's tensor."""
    swap = {"ffn_gate": "ffn_up", "ffn_up": "ffn_gate"}
    tensor_rows = SourceModel.tensor_rows

    def swapped(self: SourceModel, layer: LayerFacts, role: str) -> TensorRows:
        return tensor_rows(self, layer, swap.get(role, role))

    patch.setattr(SourceModel, "tensor_rows", swapped)


@pytest.mark.fast_only("gate_and_up_swapped")
@pytest.mark.parametrize("plant", [rows_unpermuted, next_channel_scales, gate_and_up_swapped])
def test_a_bug_in_storing_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    artifact = convert_to(tmp_path, EMBEDDED, WeightFormat.INT8_CHANNEL)
    monkeypatch.undo()
    verdict = golden_without_stack(artifact, EMBEDDED)
    assert verdict.failures
    unsound = [w.tensor for w in verdict.weights if not w.sound]
    assert bool(unsound) == (plant is next_channel_scales)


@pytest.mark.slow
def test_greedy_tokens_continue_each_prompt(embedded: Artifact) -> None:
    verifier = open_verifier(embedded, TORCH, 1)
    prompts = [*PROMPTS, list(range(300))]
    with GGUFFile(EMBEDDED) as file:
        figures = compare_computed(
            embedded.manifest,
            Reference(file, embedded.manifest.context),
            lambda shard: open_shard(embedded, shard, TORCH, 1),
            PassInputs(embedded.manifest),
            verifier.embedding,
            run_prompts(verifier, prompts, greedy_tokens=6),
        ).stack
    verifier.close()
    context = embedded.manifest.context
    assert [f.prompt_tokens for f in figures] == [5, 21, context - 6]
    assert [f.greedy_tokens for f in figures] == [6, 6, 6]
    assert all(f.leading <= f.agreeing <= 6 for f in figures)
