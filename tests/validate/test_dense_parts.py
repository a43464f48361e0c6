"""Parts of dense layers beside Llama's: with one left out of the graph, the golden gate fails."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from converting import build
from family_files import Variant
from planted import golden_of, is_red
from slow import slow_but

from anespec.convert import layers
from anespec.convert.graph import mlp, norm, shards
from anespec.convert.graph.builder import mb
from anespec.convert.mixers.attention import graph as attention
from anespec.convert.source.model import OUTPUT
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends.embedding import Embedding

Plant = Callable[[pytest.MonkeyPatch], None]


def the_mean_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(norm, "centred", lambda x, axis=1: x)


def the_mean_of_heads_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attention, "centred", lambda x, axis=1: x)


def biases_of_norms_are_lost(patch: pytest.MonkeyPatch) -> None:
    found = layers.hidden_norm
    patch.setattr(layers, "hidden_norm", lambda *given: replace(found(*given), bias=None))


def one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    built = shards.decoder_layer

    def decoder_layer(x: object, weights: shards.LayerWeights, *others: object) -> object:
        return built(x, replace(weights, parallel=False, mlp_norm=weights.attention_norm), *others)

    patch.setattr(shards, "decoder_layer", decoder_layer)


def relu_is_not_squared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mlp, "activate", lambda x, *_: mb.maximum(x=x, y=np.float16(0)))


def logits_have_no_bias(patch: pytest.MonkeyPatch) -> None:
    bias = layers._bias
    patch.setattr(layers, "_bias", lambda values, weight: None if weight == OUTPUT else bias(values, weight))


def below_zero_is_linear(patch: pytest.MonkeyPatch) -> None:
    xielu = mlp._xielu
    patch.setattr(mlp, "_xielu", lambda x, factors: xielu(x, replace(factors, exponential=0.0)))


def outputs_have_another_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mb, "sigmoid", mb.tanh)


def embeddings_are_not_normed(patch: pytest.MonkeyPatch) -> None:
    looked_up = Embedding._looked_up
    patch.setattr(Embedding, "_looked_up", lambda self, *given: looked_up(self, *given[:3]))


def nothing_is_clamped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attention, "_clamped", lambda x, clamp: x)


HEAD_NORMS = {
    f"blk.{layer}.{role}.weight": True for layer in range(4) for role in ("attn_q_norm", "attn_k_norm")
}
TWO_NORMS = {f"blk.{layer}.attn_norm_2.{kind}": True for layer in range(4) for kind in ("weight", "bias")}
PARALLEL = {"blk.*.ffn_norm.*": None} | HEAD_NORMS

MODELS = {
    "apertus": Variant("apertus"),
    "command-r": Variant("command-r", tensors=HEAD_NORMS),
    "falcon": Variant("falcon", {"attention.head_count_kv": 2}, TWO_NORMS),
    "muse-glimmer": Variant("muse-glimmer"),
    "nemotron": Variant("nemotron"),
    "olmo": Variant("olmo", {"attention.clamp_kqv": 0.5}),
    "phi2": Variant("phi2"),
    "stablelm": Variant("stablelm", tensors=PARALLEL),
}

FAULTS: list[tuple[str, Plant]] = [
    ("muse-glimmer", outputs_have_another_gate),
    ("muse-glimmer", embeddings_are_not_normed),
    ("apertus", below_zero_is_linear),
    ("command-r", the_mean_stays),
    ("command-r", the_mean_of_heads_stays),
    ("command-r", one_after_the_other),
    ("falcon", biases_of_norms_are_lost),
    ("falcon", one_after_the_other),
    ("nemotron", relu_is_not_squared),
    ("olmo", the_mean_stays),
    ("olmo", nothing_is_clamped),
    ("phi2", logits_have_no_bias),
    ("phi2", one_after_the_other),
    ("stablelm", the_mean_of_heads_stays),
]


def converted(name: str, folder: Path) -> tuple[Artifact, Path]:
    gguf = MODELS[name].write(folder / f"{name}.gguf")
    options = {"target": Target.CPU, "context": 128, "weights": WeightChoice(WeightFormat.FP16)}
    return Artifact(build(gguf, folder / "m.anespec", **options).path), gguf


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(MODELS, "stablelm"))
def test_a_model_with_other_parts_is_green(name: str, tmp_path: Path) -> None:
    verdict = golden_of(*converted(name, tmp_path))
    assert verdict.failures == ()
    assert verdict.passed


@pytest.mark.fast_only("phi2-one_after_the_other")
@pytest.mark.parametrize(("name", "plant"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_part_that_is_left_out_is_red(
    name: str, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_red(*converted(name, tmp_path))
