"""Nemotron 3: experts without gates, which may read a latent, pass the gates; wrong ones do not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_gates import require_gates
from converting import build
from family_files import FAMILIES, Variant, with_number
from family_variants import CASES
from planted import golden_of, is_red
from slow import slow_but

from anespec.convert import layers
from anespec.convert.families.family import Activation
from anespec.convert.graph import experts, mlp, shards
from anespec.convert.graph.experts import MixtureWeights
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import ExpertForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import AnespecError
from anespec.validate.golden.reference import Reference

BASE = "nemotron_h_moe"
LATENT = CASES["nemotron_h_moe with latent experts"].variant
Plant = Callable[[pytest.MonkeyPatch], None]


def converted(gguf: Path, folder: Path, **options: Any) -> Artifact:
    given = {"target": Target.CPU, "context": 192, "weights": WeightChoice(WeightFormat.FP16), **options}
    return Artifact(build(gguf, folder / "m.anespec", **given).path)


GATED: dict[str, tuple[Variant, str, int]] = {
    "torch": (Variant(BASE), "torch", 1),
    "torch, 2 sequences": (Variant(BASE), "torch", 2),
    "openvino": (Variant(BASE), "openvino", 1),
    "openvino, 2 sequences": (Variant(BASE), "openvino", 2),
    "latent on torch": (LATENT, "torch", 2),
    "latent on openvino": (LATENT, "openvino", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(GATED, "latent on openvino"))
def test_plain_experts_pass_the_gates(name: str, tmp_path: Path) -> None:
    variant, backend, sequences = GATED[name]
    gguf = variant.write(tmp_path / "m.gguf")
    artifact = converted(gguf, tmp_path, sequences=sequences)
    require_gates(artifact, gguf, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_plain_experts_as_one_wide_mlp_pass_golden(backend: str, tmp_path: Path) -> None:
    gguf = LATENT.write(tmp_path / "m.gguf")
    artifact = converted(gguf, tmp_path, target=Target.MAC)
    assert artifact.manifest.experts is ExpertForm.WIDE
    stored = [tensor.projection for tensor in artifact.manifest.tensors]
    assert "layer_1_experts_up" in stored and "layer_1_experts_gate" not in stored
    assert golden_of(artifact, gguf, backend).failures == ()


@pytest.mark.fast_only("mac")
@pytest.mark.parametrize("target", Target)
def test_the_plan_counts_the_bytes_that_are_stored(target: Target, tmp_path: Path) -> None:
    gguf = LATENT.write(tmp_path / "m.gguf")
    artifact = converted(gguf, tmp_path, target=target)
    with GGUFFile(gguf) as file:
        options = ConvertOptions(target=target, context=192, weights=WeightChoice(WeightFormat.FP16))
        planned = ConversionPlan(SourceModel(file), options).weight_bytes()
    assert planned == sum(tensor.bytes for tensor in artifact.manifest.tensors)


def an_expert_is_not_squared(patch: pytest.MonkeyPatch) -> None:
    """The experts' activation is relu, that of the shared expert still relu squared."""
    built = experts._each

    def plant(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(mlp, "activate", lambda x, _: mlp.mb.maximum(x=x, y=np.float16(0)))
            return built(*given)

    patch.setattr(experts, "_each", plant)


def the_experts_have_silu(patch: pytest.MonkeyPatch) -> None:
    built = shards.mixture
    patch.setattr(shards, "mixture", lambda x, weights, _, *rest: built(x, weights, Activation.SILU, *rest))


def with_plan(**changes: Any) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        found = layers._routing
        patch.setattr(layers, "_routing", lambda plan, facts: replace(found(plan, facts), **changes))

    return plant


def with_weights(change: Callable[[MixtureWeights], MixtureWeights]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        built = shards.mixture
        patch.setattr(shards, "mixture", lambda x, weights, *others: built(x, change(weights), *others))

    return plant


PLANTED: dict[str, Plant] = {
    "not squared": an_expert_is_not_squared,
    "another activation": the_experts_have_silu,
    "no scale": with_plan(scale=1.0),
    "not renormalised": with_plan(renormalised=False),
    "no selection bias": with_weights(lambda given: replace(given, selection_bias=None)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_graph_is_red(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = FAMILIES / f"{BASE}.gguf"
    PLANTED[name](monkeypatch)
    assert is_red(converted(gguf, tmp_path), gguf)


def test_a_file_without_shared_experts_is_one_whose_shared_experts_are_zero(tmp_path: Path) -> None:
    """llama.cpp needs these tensors, so it says nothing about a file without them."""
    variant = Variant(BASE, tensors={"*_shexp.weight": 0.0})
    path, found = variant.write(tmp_path / "m.gguf"), []
    for missing in (False, True):
        with GGUFFile(path) as file:
            for name in [name for name in file.tensors if missing and "_shexp" in name]:
                del file.tensors[name]
            reference = Reference(file, 128, resident_layers=6)
            found.append(reference.logits(reference.hidden_states([variant.prompt(20)])[0]))
    np.testing.assert_array_equal(*found)


DAMAGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no number of used ones": ({"expert_used_count": None}, {}, "expert_used_count"),
    "more used than there are": ({"expert_used_count": 9}, {}, "9 of 8 experts"),
    "another number for each layer": ({"expert_used_count": [0, 3, 0, 0, 0, 3]}, {}, "expert_used_count"),
    "no router": ({}, {"blk.1.ffn_gate_inp.weight": None}, "blk.1.ffn_gate_inp.weight"),
    "no experts' downs": ({}, {"blk.5.ffn_down_exps.weight": None}, "blk.5.ffn_down_exps.weight"),
    "gates": ({}, {"blk.1.ffn_gate_exps.weight": True}, "does not use: blk.1.ffn_gate_exps.weight"),
    "a gate of the shared expert": ({}, {"blk.1.ffn_gate_shexp.weight": True}, "does not use"),
    "a latent without tensors": ({"moe_latent_size": 24}, {}, "blk.1.ffn_latent_down.weight"),
    "a latent without a key": ({}, {"blk.1.ffn_latent_down.weight": True}, "does not use"),
    "groups": ({"expert_group_count": 2}, {}, "by groups"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    keys, tensors, words = DAMAGED[name]
    path = Variant(BASE, keys, tensors).write(tmp_path / "m.gguf")
    with GGUFFile(path) as file, pytest.raises(AnespecError, match=words) as found:
        SourceModel(file)
    assert "\n" not in str(found.value)


LIES = {
    "a narrower expert": ("expert_feed_forward_length", 40, "has shape"),
    "a narrower shared expert": ("expert_shared_feed_forward_length", 48, "has shape"),
    "fewer experts": ("expert_count", 4, "has shape"),
    "no experts": ("expert_count", 0, "'nemotron_h_moe.expert_count' is 0"),
    "a narrower latent": ("moe_latent_size", 16, "has shape"),
    "a latent that is too wide": ("moe_latent_size", 1 << 30, "read 1073741824 channels"),
}


@pytest.mark.parametrize("name", LIES)
def test_experts_of_other_shapes_than_the_keys_say_are_refused(name: str, tmp_path: Path) -> None:
    key, value, words = LIES[name]
    lied = with_number(LATENT.write(tmp_path / "m.gguf"), f"{BASE}.{key}", value)
    with GGUFFile(lied) as file, pytest.raises(AnespecError, match=words):
        SourceModel(file)
