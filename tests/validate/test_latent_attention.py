"""Latent attention: gates that pass in every form and see wrong graphs, and files that lie."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_gates import require_gates
from converting import build
from family_files import FAMILIES, Variant
from family_keys import latent, plain_queries, yarn
from gguf import GGUFReader, GGUFWriter
from planted import golden_of, is_red
from slow import slow_but
from tiny_model import add_value

from anespec.convert.families.mixture import Gating
from anespec.convert.mixers.kinds import LatentFacts
from anespec.convert.mixers.latent import graph, prepare
from anespec.convert.source import model as source
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.consistency import contradictions
from anespec.manifests.schema import AttentionShape, KVForm, RopeRows, Shapes, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import AnespecError

DEEPSEEK, GLM = (FAMILIES / f"{name}.gguf" for name in ("deepseek2", "glm4moelite"))
Plant = Callable[[pytest.MonkeyPatch], None]


def converted(folder: Path, gguf: Path = DEEPSEEK, **options: Any) -> Artifact:
    given = {"target": Target.CPU, "context": 192, "weights": WeightChoice(WeightFormat.FP16), **options}
    return Artifact(build(gguf, folder / "m.anespec", **given).path)


SHAPES: dict[str, tuple[str, Path, dict[str, Any]]] = {
    "torch four sequences": ("torch", GLM, {"sequences": 4}),
    "openvino four sequences": ("openvino", DEEPSEEK, {"sequences": 4}),
    "torch mac": ("torch", DEEPSEEK, {"target": Target.MAC, "topology": (1, 3)}),
    "openvino packed": ("openvino", GLM, {"target": Target.MAC, "kv_form": KVForm.PACKED}),
    "torch outside": ("torch", GLM, {"kv_form": KVForm.OUTSIDE}),
    "openvino at position": ("openvino", DEEPSEEK, {"kv_form": KVForm.AT_POSITION}),
    "torch blended": ("torch", DEEPSEEK, {"kv_form": KVForm.BLENDED}),
    "openvino functions": ("openvino", DEEPSEEK, {"shapes": Shapes.FUNCTIONS}),
    "openvino int8": ("openvino", GLM, {"weights": WeightChoice(WeightFormat.INT8_CHANNEL)}),
    "torch by KV head": ("torch", GLM, {"attention": AttentionShape.PER_KV_HEAD}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(SHAPES, "openvino four sequences", "torch outside"))
def test_every_form_and_shape_passes_the_gates(case: str, tmp_path: Path) -> None:
    backend, gguf, options = SHAPES[case]
    artifact = converted(tmp_path, gguf, **options)
    require_gates(artifact, gguf, backend)


@pytest.mark.slow
def test_one_latent_of_each_row_is_kept_and_nothing_else(tmp_path: Path) -> None:
    artifact = converted(tmp_path, topology=(4,))
    (shard,) = artifact.manifest.layer_shards
    assert [state.shape for state in shard.states] == [(1, 1, 192, 32 + 16)] * 4
    assert {state.kind for state in shard.states} == {"latent"}
    stored = {tensor.projection: tensor for tensor in shard.tensors}
    key, value = stored["layer_2_head_3_k_b"], stored["layer_2_head_3_v_b"]
    assert (key.tensor, key.first_row, key.rows, key.columns) == ("blk.2.attn_k_b.weight", 96, 32, 16)
    assert (value.tensor, value.first_row, value.rows, value.columns) == ("blk.2.attn_v_b.weight", 48, 16, 32)
    assert stored["layer_0_q_b"].rope_rows == RopeRows(head=32, first=16)
    assert stored["layer_0_kv_a"].rope_rows == RopeRows(head=48, first=32)
    assert not key.rope_permuted and key.rope_rows is None


def with_weights(change: Callable[[graph.LatentWeights], graph.LatentWeights]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def changed(**given: Any) -> graph.LatentWeights:
            return change(graph.LatentWeights(**given))

        patch.setattr(prepare, "LatentWeights", changed)

    return plant


def without_norm(part: str) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        norm = graph.rms_norm
        patch.setattr(
            graph,
            "rms_norm",
            lambda x, weight, epsilon, name: x if part in name else norm(x, weight, epsilon, name),
        )

    return plant


def the_scale_is_that_of_what_is_kept(patch: pytest.MonkeyPatch) -> None:
    found = prepare.latent_plan

    def planned(*given: Any) -> graph.LatentPlan:
        plan = found(*given)
        return replace(plan, sizes=replace(plan.sizes, scale=plan.sizes.head_dim**-0.5))

    patch.setattr(prepare, "latent_plan", planned)


def keys_do_not_rotate(patch: pytest.MonkeyPatch) -> None:
    rotated = graph.LatentAttention._rotated
    patch.setattr(
        graph.LatentAttention,
        "_rotated",
        lambda self, x, shard: x if x.shape[1] == 1 else rotated(self, x, shard),
    )


def other_rows_of_a_head_rotate(patch: pytest.MonkeyPatch) -> None:
    """The first rows of each head instead of the last ones."""
    split = graph.mb.split

    def swapped(**given: Any) -> Any:
        if given["axis"] != 2:
            return split(**given)
        return split(**{**given, "split_sizes": given["split_sizes"][::-1]})[::-1]

    patch.setattr(graph.mb, "split", swapped)


def pairs_stay_side_by_side(patch: pytest.MonkeyPatch) -> None:
    """Rows of the file's order, which the graph rotates as if they were reordered."""
    patch.setattr(source, "neox_order", lambda heads, rows, rotary: np.arange(heads * rows))


def values_are_the_last_channels(patch: pytest.MonkeyPatch) -> None:
    """The sums begin behind the keys that rotate, which are not in front."""
    split = graph.mb.split

    def swapped(**given: Any) -> Any:
        if given["axis"] != -1 or given["x"].shape[1] == 1:
            return split(**given)
        return split(**{**given, "split_sizes": given["split_sizes"][::-1]})[::-1]

    patch.setattr(graph.mb, "split", swapped)


PLANTED: dict[str, Plant] = {
    "keys of another head": with_weights(
        lambda given: replace(given, head_keys=[*given.head_keys[1:], given.head_keys[0]])
    ),
    "values of another head": with_weights(
        lambda given: replace(given, head_values=[*given.head_values[1:], given.head_values[0]])
    ),
    "no norm of the latent": without_norm("kv_a"),
    "no norm of the queries' latent": without_norm("q_a"),
    "another scale": the_scale_is_that_of_what_is_kept,
    "keys without rope": keys_do_not_rotate,
    "rope on other rows": other_rows_of_a_head_rotate,
    "pairs side by side": pairs_stay_side_by_side,
    "values of other channels": values_are_the_last_channels,
}


@pytest.mark.fast_only("keys of another head")
@pytest.mark.parametrize("name", slow_but(PLANTED, *list(PLANTED)[:2]))
def test_a_wrong_graph_is_red(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert is_red(converted(tmp_path), DEEPSEEK)


LYING: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "what is kept": ({"attention.key_length": 47}, {}, "a latent of 32 and 16 .* kept as 47 and 32, are"),
    "values that are kept": ({"attention.value_length": 16}, {}, "kept as 48 and 16, are impossible"),
    "no rank": ({"attention.kv_lora_rank": None}, {}, "'deepseek2.attention.kv_lora_rank' is missing"),
    "rank of zero": ({"attention.kv_lora_rank": 0}, {}, "latents of 0 .* are impossible"),
    "another rank": ({"attention.kv_lora_rank": 40}, {}, "a latent of 40 and 16 .* are impossible"),
    "no rank of queries": ({"attention.q_lora_rank": None}, {}, "'deepseek2.attention.q_lora_rank' is missi"),
    "rank of zero of queries": ({"attention.q_lora_rank": 0}, {}, "of 0 for queries"),
    "another rank of queries": ({"attention.q_lora_rank": 8}, {}, "attn_q_a.weight' has shape"),
    "odd rope": ({"rope.dimension_count": 15}, {}, "and 15 dimensions that rotate are impossible"),
    "no rope": ({"rope.dimension_count": 0}, {}, "and 0 dimensions that rotate are impossible"),
    "more rope": ({"rope.dimension_count": 18}, {}, "a latent of 32 and 18 .* are impossible"),
    "rope of the whole key": ({"attention.key_length_mla": 16}, {}, "keys of 16, of which 16 dimensions rot"),
    "rope beyond the key": ({"attention.key_length_mla": 8}, {}, "keys of 8, of which 16 dimensions rotate"),
    "other keys": ({"attention.key_length_mla": 40}, {}, "attn_q_b.weight' has shape"),
    "no key length": ({"attention.key_length_mla": None}, {}, "'deepseek2.attention.key_length_mla' is miss"),
    "huge keys": ({"attention.key_length_mla": 1 << 30}, {}, "are impossible for latent attention"),
    "no values": ({"attention.value_length_mla": 0}, {}, "values of 0 and"),
    "other values": ({"attention.value_length_mla": 8}, {}, "attn_v_b.weight' has shape"),
    "KV heads": ({"attention.head_count_kv": 2}, {}, "2 KV heads"),
    "no KV heads": ({"attention.head_count_kv": 0}, {}, "0 KV heads"),
    "no heads": ({"attention.head_count": 0}, {}, "0 query heads"),
    "other heads": ({"attention.head_count": 2}, {}, "attn_q_b.weight' has shape"),
    "transposed keys": (
        {},
        {"transposed": "blk.2.attn_k_b.weight"},
        r"attn_k_b\.weight' has shape \(4, 16, 32\), but the metadata says \(4, 32, 16\)",
    ),
    "transposed values": (
        {},
        {"transposed": "blk.3.attn_v_b.weight"},
        r"attn_v_b\.weight' has shape \(4, 32, 16\)",
    ),
    "no matrices of values": ({}, {"left_out": "blk.1.attn_v_b.weight"}, "blk.1.attn_v_b.weight"),
    "no norm": ({}, {"left_out": "blk.1.attn_kv_a_norm.weight"}, "blk.1.attn_kv_a_norm.weight"),
    "one tensor": (
        {},
        {"left_out": "blk.*.attn_[kv]_b.weight", "added": "blk.0.attn_kv_b.weight"},
        r"in one tensor \(attn_kv_b\).* convert the model again with a newer llama.cpp",
    ),
    "both forms": ({}, {"added": "blk.0.attn_kv_b.weight"}, "does not use: blk.0.attn_kv_b.weight"),
    "groups": ({"expert_group_count": 2}, {}, "chooses experts by groups"),
    "linear scaling": (
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        {},
        "supports rope scaling only as YaRN",
    ),
    "yarn without a multiplier": (yarn(), {}, "supports rope scaling only as YaRN with a log multiplier"),
    "huge multiplier": (
        yarn() | {"rope.scaling.yarn_log_multiplier": -1e30},
        {},
        r"a log multiplier of -1e\+30 is invalid",
    ),
    "growing scores": ({"attention.temperature_scale": 0.1}, {}, "scores that grow with the position"),
}


def copied(
    path: Path, keys: Mapping[str, Any], left_out: str = "", transposed: str = "", added: str = ""
) -> Path:
    """DeepSeek's file with other keys, without tensors of a pattern, and with one whose axes are swapped."""
    reader = GGUFReader(DEEPSEEK)
    writer = GGUFWriter(path, "deepseek2")
    fields = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("GGUF.")}
    del fields["general.architecture"]
    for key, value in (fields | {f"deepseek2.{key}": value for key, value in keys.items()}).items():
        if value is not None:
            add_value(writer, key, value)
    for tensor in reader.tensors:
        data = np.asarray(tensor.data)
        if not fnmatch(tensor.name, left_out):
            swapped = tensor.name == transposed
            writer.add_tensor(tensor.name, np.ascontiguousarray(data.swapaxes(-2, -1)) if swapped else data)
    if added:
        writer.add_tensor(added, np.zeros((4 * (16 + 16), 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", LYING)
def test_a_lying_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    keys, tensors, words = LYING[name]
    path = copied(tmp_path / "m.gguf", keys, **tensors)
    with GGUFFile(path) as file, pytest.raises(AnespecError, match=words) as refused:
        SourceModel(file)
    assert "\n" not in str(refused.value)


def test_a_selection_bias_means_sigmoids_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    found = {}
    for base in ("deepseek2", "glm4moelite"):
        for code in (None, 1, 2):
            path = Variant(base, {"expert_gating_func": code}).write(tmp_path / f"{base}{code}.gguf")
            with GGUFFile(path) as file:
                found[base, code] = SourceModel(file).facts.mlps[-1].gating
    assert found == {
        ("deepseek2", None): Gating.SOFTMAX,
        ("deepseek2", 1): Gating.SOFTMAX,
        ("deepseek2", 2): Gating.SIGMOID,
        ("glm4moelite", None): Gating.SIGMOID,
        ("glm4moelite", 1): Gating.SOFTMAX,
        ("glm4moelite", 2): Gating.SIGMOID,
    }


@pytest.mark.slow
def test_rows_that_cannot_be_a_head_s_are_a_contradiction(tmp_path: Path) -> None:
    manifest = converted(tmp_path, topology=(4,)).manifest
    assert not list(contradictions(manifest))
    (shard,) = manifest.layer_shards
    for rows in (RopeRows(head=32, first=17), RopeRows(head=31, first=0)):
        wrong = [
            tensor.model_copy(update={"rope_rows": rows}) if tensor.projection == "layer_0_q_b" else tensor
            for tensor in shard.tensors
        ]
        changed = shard.model_copy(update={"tensors": tuple(wrong)})
        found = list(contradictions(manifest.model_copy(update={"layer_shards": (changed,)})))
        assert len(found) == 1 and "blk.0.attn_q_b.weight" in found[0]


LITE = latent(3, 24, 8, 20, 40, None)


@pytest.mark.slow
def test_without_a_latent_of_queries_the_gates_pass(tmp_path: Path) -> None:
    gguf = Variant("deepseek2", LITE, plain_queries(4)).write(tmp_path / "lite.gguf")
    artifact = converted(tmp_path, gguf, sequences=2)
    with GGUFFile(gguf) as file:
        mixer = SourceModel(file).facts.mixers[0]
    assert isinstance(mixer, LatentFacts) and mixer.query_latent is None
    assert golden_of(artifact, gguf, "openvino").failures == ()
    stored = [tensor.projection for tensor in artifact.manifest.tensors]
    assert "layer_0_q" in stored and "layer_0_q_a" not in stored
