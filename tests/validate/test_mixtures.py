"""Mixtures of experts: the gates pass on every family, see a wrong graph, and damaged files are refused."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_gates import require_gates
from converting import build, build_once
from family_files import FAMILIES, Variant, with_number
from once import Once
from planted import golden_of, is_red
from slow import slow_but

from anespec.convert import layers
from anespec.convert.families.mixture import Gating
from anespec.convert.graph import mlp, shards
from anespec.convert.graph.builder import mb
from anespec.convert.graph.experts import MixtureWeights
from anespec.convert.mixers.attention import prepare
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.experts import expert_of
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import ExpertForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends.portable.program import load_program
from anespec.system.errors import AnespecError
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.reference_experts import DOUBT

MIXTURES = [
    "qwen3moe",
    "mixtral",
    "olmoe",
    "qwen2moe",
    "granitemoe",
    "ernie4_5-moe",
    "gpt-oss",
    "lfm2moe",
    "gemma4moe",
    "deepseek2",
    "glm4moelite",
    "nemotron_h_moe",
]
FAST = "qwen3moe"
GATED = [
    (FAST, "torch"),
    (FAST, "openvino"),
    pytest.param(FAST, "mlx", marks=pytest.mark.slow),
    *(
        pytest.param(name, backend, marks=pytest.mark.slow)
        for name in MIXTURES[1:]
        for backend in ("openvino", "mlx")
    ),
]
"""Each mixture on the backends that stack experts in a way of their own. On torch, which runs them one by one
as the graph says, one is enough here; test_families.py runs more of them there."""
ONE_BY_ONE = {"gemma4moe": {"topology": (1,) * 6}}
"""Its scores are large and fp16 rounds them, so near ties in one layer make more in the next ones: each layer
is judged by itself."""
Plant = Callable[[pytest.MonkeyPatch], None]


OPTIONS = {"target": Target.CPU, "context": 192, "weights": WeightChoice(WeightFormat.FP16)}


def converted(name: str, folder: Path, **options: Any) -> Artifact:
    return Artifact(build(FAMILIES / f"{name}.gguf", folder / "m.anespec", **OPTIONS | options).path)


@pytest.mark.fast_only("qwen3moe-openvino")
@pytest.mark.parametrize(("name", "backend"), GATED)
def test_every_mixture_passes_the_gates(name: str, backend: str, once: Once, tmp_path: Path) -> None:
    gguf, shape = FAMILIES / f"{name}.gguf", ONE_BY_ONE.get(name, {})
    path = build_once(once, gguf, tmp_path / "m.anespec", **OPTIONS, sequences=2, **shape)
    require_gates(Artifact(path), gguf, backend)


def weights_do_not_add_up_to_one(patch: pytest.MonkeyPatch) -> None:
    found = layers._routing
    patch.setattr(layers, "_routing", lambda plan, facts: replace(found(plan, facts), renormalised=False))


def one_expert_fewer(patch: pytest.MonkeyPatch) -> None:
    found = layers._routing
    patch.setattr(layers, "_routing", lambda plan, facts: replace(found(plan, facts), used=facts.used - 1))


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch", "openvino"))
def test_experts_as_one_wide_mlp_pass_golden(backend: str, tmp_path: Path) -> None:
    artifact = converted("granitemoe", tmp_path, target=Target.MAC)
    assert artifact.manifest.experts is ExpertForm.WIDE
    program = load_program(artifact.shard_path(artifact.manifest.layer_shards[0]))
    assert not {"equal", "less_equal", "cast"} & {operation.kind for operation in program.operations}
    stored = [tensor.projection for tensor in artifact.manifest.tensors]
    assert "layer_0_experts_gate" in stored and "layer_0_expert_0_gate" not in stored
    assert golden_of(artifact, FAMILIES / "granitemoe.gguf", backend).failures == ()


def plan_of(name: str, **options: Any) -> ConversionPlan:
    with GGUFFile(FAMILIES / f"{name}.gguf") as file:
        return ConversionPlan(SourceModel(file), ConvertOptions(context=128, **options))


FORMS: dict[str, tuple[str, dict[str, Any], ExpertForm | None, str]] = {
    "processor": (
        "qwen3moe",
        {"target": Target.CPU},
        ExpertForm.EACH,
        "4 rows use about 5 of 8",
    ),
    "engine": ("qwen3moe", {"target": Target.MAC}, ExpertForm.WIDE, "reads all of them in every pass"),
    "one row": ("qwen3moe", {"target": Target.MAC, "block": 1}, ExpertForm.EACH, "fewer than half"),
    "biases": ("gpt-oss", {"target": Target.MAC}, ExpertForm.EACH, "experts have biases"),
    "both in one": ("gemma4moe", {"target": Target.MAC}, ExpertForm.EACH, "in one tensor"),
    "dense": ("qwen3", {"target": Target.MAC}, None, ""),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_experts_is_chosen_and_explained(name: str) -> None:
    family, options, form, words = FORMS[name]
    found = plan_of(family, **options).experts
    assert (None if found is None else found.form) is form
    assert found is None or words in found.reason


def test_a_manifest_without_experts_does_not_mention_them(tmp_path: Path) -> None:
    assert '"experts"' not in converted("qwen3", tmp_path).manifest.model_dump_json()


def with_weights(change: Callable[[MixtureWeights], MixtureWeights]) -> Plant:
    """Build every mixture from other weights."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        built = shards.mixture
        patch.setattr(shards, "mixture", lambda x, weights, *others: built(x, change(weights), *others))

    return plant


def the_shared_expert_has_no_gate(patch: pytest.MonkeyPatch) -> None:
    """The gate's projection is computed, but its sigmoid is 1 for all rows."""
    zero, one = np.float16(0), np.float16(1)
    patch.setattr(mb, "sigmoid", lambda x: mb.add(x=mb.mul(x=x, y=zero), y=one))


def softmax_for_sigmoid(patch: pytest.MonkeyPatch) -> None:
    found = layers._routing
    patch.setattr(layers, "_routing", lambda plan, facts: replace(found(plan, facts), gating=Gating.SOFTMAX))


def sinks_are_left_out(patch: pytest.MonkeyPatch) -> None:
    built = prepare.AttentionWeights
    patch.setattr(prepare, "AttentionWeights", lambda *given: built(*given[:-1]))


def up_is_not_raised_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mlp, "clamped_swiglu", lambda gate, up: mb.mul(x=mb.silu(x=gate), y=up))


def experts_have_no_biases(patch: pytest.MonkeyPatch) -> None:
    found = SourceModel.layer_bias

    def without(self: SourceModel, layer: Any, role: str) -> Any:
        return None if expert_of(role) is not None else found(self, layer, role)

    patch.setattr(SourceModel, "layer_bias", without)


PLANTED: dict[str, tuple[str, Plant]] = {
    "not renormalised": ("qwen3moe", weights_do_not_add_up_to_one),
    "one fewer": ("qwen3moe", one_expert_fewer),
    "another order": (
        "qwen3moe",
        with_weights(lambda given: replace(given, experts=[*given.experts[1:], given.experts[0]])),
    ),
    "no gate": ("qwen2moe", the_shared_expert_has_no_gate),
    "no selection bias": (
        "ernie4_5-moe",
        with_weights(lambda given: replace(given, selection_bias=None)),
    ),
    "no sinks": ("gpt-oss", sinks_are_left_out),
    "another activation": ("gpt-oss", up_is_not_raised_by_one),
    "no biases": ("gpt-oss", experts_have_no_biases),
    "another gating": ("lfm2moe", softmax_for_sigmoid),
}


@pytest.mark.parametrize("name", slow_but(PLANTED, "not renormalised"))
def test_a_wrong_graph_is_red(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, plant = PLANTED[name]
    plant(monkeypatch)
    assert is_red(converted(family, tmp_path), FAMILIES / f"{family}.gguf")


def test_a_row_of_doubtful_experts_says_so() -> None:
    """The doubt is how far the row moves if its last expert and the next one change places."""
    with GGUFFile(FAMILIES / "qwen3moe.gguf") as file:
        reference = Reference(file, 128)
        mixture = reference._reader.layer(0).mixture
        assert mixture is not None
        rows = np.random.default_rng(0).normal(size=(400, reference.facts.hidden_size)).astype(np.float32)
        logits = np.sort(mixture.router(rows), axis=1)[:, ::-1]
        used = mixture.facts.used
        close = logits[:, used - 1] - logits[:, used] < DOUBT * logits.std(axis=1)
        mixed = mixture(rows, rows)
        differs = (mixed.outputs != mixed.otherwise).any(axis=1)
        assert 3 < close.sum() < 100
        assert (differs == close).all()


DAMAGED = {
    "one expert": ({"expert_count": 1}, {}, "2 of 1 experts"),
    "more used than there are": ({"expert_used_count": 9}, {}, "9 of 8 experts"),
    "none used": ({"expert_used_count": 0}, {}, "0 of 8 experts"),
    "another width": ({"expert_feed_forward_length": 32}, {"*_exps.weight": None}, "_exps"),
    "no router": ({}, {"blk.1.ffn_gate_inp.weight": None}, "blk.1.ffn_gate_inp.weight"),
    "no experts": ({}, {"blk.2.ffn_down_exps.weight": None}, "blk.2.ffn_down_exps.weight"),
    "groups": ({"expert_group_count": 4}, {}, "by groups"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    keys, tensors, words = DAMAGED[name]
    variant = Variant("qwen3moe", keys, tensors)
    with (
        GGUFFile(variant.write(tmp_path / "m.gguf")) as file,
        pytest.raises(AnespecError, match=words),
    ):
        SourceModel(file)


@pytest.mark.parametrize(
    ("count", "words"),
    [(4, "has shape"), (0, "'qwen3moe.expert_count' is 0"), (100_000, "2 of 100000 experts")],
)
def test_another_number_of_experts_than_there_are_is_refused(count: int, words: str, tmp_path: Path) -> None:
    copied = Path(shutil.copy(FAMILIES / "qwen3moe.gguf", tmp_path / "m.gguf"))
    lied = with_number(copied, "qwen3moe.expert_count", count)
    with GGUFFile(lied) as file, pytest.raises(AnespecError, match=words):
        SourceModel(file)


@pytest.mark.parametrize("name", ["blk.1.ffn_gate_inp.weight", "blk.2.ffn_down_exps.weight"])
def test_a_router_or_an_expert_that_is_no_number_is_refused_and_nothing_is_left(
    name: str, tmp_path: Path
) -> None:
    with GGUFFile(FAMILIES / "qwen3moe.gguf") as file:
        values = file.rows(name).reshape(file.info(name).shape).copy()
    values.flat[7] = np.nan
    Variant("qwen3moe", tensors={name: values}).write(tmp_path / "m.gguf")
    with pytest.raises(AnespecError, match=f"{re.escape(name)}' holds values that are not finite"):
        build(tmp_path / "m.gguf", tmp_path / "m.anespec", target=Target.CPU)
    assert not (tmp_path / "m.anespec").exists()


def test_an_mlp_beside_experts_is_refused(tmp_path: Path) -> None:
    path = Variant("qwen3moe", tensors={"blk.0.ffn_up.weight": True}).write(tmp_path / "m.gguf")
    with GGUFFile(path) as file, pytest.raises(AnespecError, match=r"does not use: blk\.0\.ffn_up\.weight"):
        SourceModel(file)


def test_a_dense_family_with_experts_is_refused(tmp_path: Path) -> None:
    variant = Variant("qwen3", {"expert_count": 8, "expert_used_count": 2})
    with (
        GGUFFile(variant.write(tmp_path / "m.gguf")) as file,
        pytest.raises(AnespecError, match="8 experts, which models of qwen3 do not have"),
    ):
        SourceModel(file)


def test_one_expert_is_read_without_the_others() -> None:
    with GGUFFile(FAMILIES / "qwen3moe.gguf") as file:
        model = SourceModel(file)
        whole = file.rows("blk.1.ffn_down_exps.weight")
        part = model.layer_matrix(model.facts.layers[1], "ffn_down_exps.5")
        assert part.shape == whole.shape[1:]
        assert (part.rows(slice(0, part.shape[0])) == whole[5]).all()
