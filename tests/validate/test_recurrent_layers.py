"""Mamba 2 and gated delta nets: the gates that see a wrong graph or fold, and files that are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from close_calls import CLOSE
from converting import build
from family_files import FAMILIES, Variant
from graphs import program_of, reloaded
from planted import INPUT_BUGS, AlteredInputs, golden_of, golden_without_stack
from slow import slow_but

from anespec.cli.inspect.verb import inspect
from anespec.convert.graph.builder import mb
from anespec.convert.mixers.delta_net import graph as delta_net
from anespec.convert.mixers.mamba2 import graph as ssd
from anespec.convert.mixers.recurrent import chunks
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import ChunkSolve, KVForm, Shapes, Target, TensorSpec, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.models import conversion
from anespec.models.conversion import conversion_notes
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.system.errors import AnespecError, GGUFError
from anespec.validate.golden.reference import Reference

RECURRENT = ("mamba2", "granitehybrid", "nemotron_h", "falcon_h1", "qwen35")


def converted(family: str, folder: Path, **options: Any) -> Artifact:
    given = {"target": Target.CPU, "context": 192, "weights": WeightChoice(WeightFormat.FP16), **options}
    return Artifact(build(FAMILIES / f"{family}.gguf", folder / "m.anespec", **given).path)


@pytest.mark.parametrize("family", slow_but(RECURRENT, "nemotron_h"))
def test_the_reference_computes_what_transformers_computes(family: str) -> None:
    """From a state of nothing, row after row; the largest error on logits is 0.0001, Falcon-H1's 0.005."""
    answers = json.loads((FAMILIES / f"{family}.json").read_text())
    ids, sure = answers["prompt_ids"], [margin >= CLOSE for margin in answers["margins"]]
    count = sure.index(False) if False in sure else len(sure)
    with GGUFFile(FAMILIES / f"{family}.gguf") as file:
        reference = Reference(file, 512, resident_layers=8)
        layers, caches = len(reference.facts.layers), reference.caches()
        hidden = reference.layers(0, layers, reference.embed(ids), range(len(ids)), caches, ids)
        logits = reference.logits(hidden[-1:])[0]
        # llama.cpp's converter rounds Falcon-H1's multipliers into fp16 weights.
        limit = 0.01 if family == "falcon_h1" else 0.0005
        assert np.abs(logits - np.array(answers["first_logits"])).max() < limit
        for place, expected in enumerate(answers["greedy"][:count], len(ids)):
            assert int(logits.argmax()) == expected
            row = reference.layers(0, layers, reference.embed([expected]), [place], caches, [expected])
            logits = reference.logits(row)[0]


FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba2 torch": ("mamba2", "torch", {}),
    "mamba2 openvino two sequences": ("mamba2", "openvino", {"sequences": 2}),
    "nemotron_h openvino": ("nemotron_h", "openvino", {}),
    "nemotron_h a shard a layer": ("nemotron_h", "openvino", {"topology": (1,) * 6}),
    "granitehybrid iphone": ("granitehybrid", "torch", {"target": Target.IPHONE}),
    "granitehybrid blended": ("granitehybrid", "openvino", {"kv_form": KVForm.BLENDED}),
    "falcon_h1 functions": ("falcon_h1", "openvino", {"shapes": Shapes.FUNCTIONS}),
    "falcon_h1 mac": ("falcon_h1", "torch", {"target": Target.MAC}),
    "qwen35 torch": ("qwen35", "torch", {}),
    "qwen35 openvino two sequences": ("qwen35", "openvino", {"sequences": 2}),
    "qwen35 mac": ("qwen35", "openvino", {"target": Target.MAC}),
    "mamba2 outside": ("mamba2", "torch", {"kv_form": KVForm.OUTSIDE}),
    "nemotron_h outside": ("nemotron_h", "openvino", {"kv_form": KVForm.OUTSIDE, "sequences": 2}),
    "qwen35 outside": ("qwen35", "torch", {"kv_form": KVForm.OUTSIDE, "sequences": 2}),
    "mamba2 mlx": ("mamba2", "mlx", {"sequences": 2}),
    "nemotron_h mlx": ("nemotron_h", "mlx", {}),
    "falcon_h1 mlx": ("falcon_h1", "mlx", {}),
    "granitehybrid outside": ("granitehybrid", "mlx", {"kv_form": KVForm.OUTSIDE}),
    "mamba2 at position": ("mamba2", "openvino", {"kv_form": KVForm.AT_POSITION}),
    "nemotron_h at position": ("nemotron_h", "torch", {"kv_form": KVForm.AT_POSITION}),
    "qwen35 chunks of 8": ("qwen35", "mlx", {"chunk": 8, "chunk_solve": ChunkSolve.BROADCAST}),
    "qwen35 chunks of 24": ("qwen35", "openvino", {"chunk": 24, "chunk_solve": ChunkSolve.BROADCAST}),
    "mamba2 chunks of 16": ("mamba2", "openvino", {"chunk": 16, "sequences": 2}),
    "qwen35 at position": ("qwen35", "openvino", {"kv_form": KVForm.AT_POSITION, "sequences": 2}),
}


@pytest.mark.parametrize("case", slow_but(FORMS, "nemotron_h at position"))
def test_every_form_and_shape_passes_golden(case: str, tmp_path: Path) -> None:
    family, backend, options = FORMS[case]
    artifact = converted(family, tmp_path, **options)
    manifest = artifact.manifest
    assert manifest.chunk == options.get("chunk", 32 if family == "qwen35" else 64)
    verdict = golden_of(artifact, FAMILIES / f"{family}.gguf", backend)
    assert verdict.failures == ()
    assert all(figures.stray_slots == 0 for figures in verdict.shards)
    layers = sum(shard.end_layer - shard.first_layer for shard in manifest.layer_shards)
    with_state = {layer for shard in manifest.layer_shards for fold in shard.folds for layer in [fold.layer]}
    assert 0 < len(with_state) <= layers


Plant = Callable[[pytest.MonkeyPatch], None]


def sums_begin_one_place_late(patch: pytest.MonkeyPatch) -> None:
    """A row's own decay is left out of what earlier rows are multiplied by."""
    behind = chunks._behind

    def wrong(rows: int) -> Any:
        found = behind(rows).copy()
        found[:, 1:] = np.tril(np.ones((rows, rows), np.float16), -2)
        return found

    patch.setattr(chunks, "_behind", wrong)


def nothing_is_skipped_to(patch: pytest.MonkeyPatch) -> None:
    """Mamba 2 lacks D x."""
    built = ssd.SSDWeights

    def without(**given: Any) -> Any:
        return built(**given | {"skip": np.zeros_like(given["skip"])})

    patch.setattr("anespec.convert.mixers.mamba2.prepare.SSDWeights", without)


def groups_alternate(patch: pytest.MonkeyPatch) -> None:
    """Head j has group j mod groups, not j div heads of a group."""

    def wrong(of_groups: Any, sizes: Any) -> Any:
        parts = mb.split(x=of_groups, num_splits=sizes.groups, axis=0)
        return mb.concat(values=list(parts) * (sizes.heads // sizes.groups), axis=0)

    patch.setattr(ssd, "_over_heads", wrong)


def gate_comes_after_the_norm(patch: pytest.MonkeyPatch) -> None:
    """Mamba 2's output is normed before silu of the gate multiplies it."""
    normed = ssd.SSD._normed

    def norm_first(self: Any, gated: Any, name: str) -> Any:
        product = gated.op
        return mb.mul(x=normed(self, product.x, name), y=product.y)

    patch.setattr(ssd.SSD, "_normed", norm_first)


def nothing_is_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A delta net's rows write as if no earlier row of the chunk had."""

    def identity(a: Any, rows: int, solve: ChunkSolve) -> Any:
        return mb.add(x=mb.mul(x=a, y=np.float16(0)), y=np.eye(rows, dtype=np.float16)[None, None])

    patch.setattr(delta_net, "_inverse", identity)


def key_heads_are_grouped(patch: pytest.MonkeyPatch) -> None:
    """Value head j has key head j div group, not j mod key heads."""
    concat = mb.concat

    def grouped(**given: Any) -> Any:
        values = list(given["values"])
        if given["axis"] != 1 or len(values) < 2 or any(value is not values[0] for value in values):
            return concat(**given)
        heads = mb.split(x=values[0], num_splits=values[0].shape[1], axis=1)
        return concat(values=[head for head in heads for _ in values], axis=1)

    patch.setattr(delta_net.mb, "concat", grouped)


def key_heads_are_tiled(patch: pytest.MonkeyPatch) -> None:
    """Value head j has key head j mod key heads, not j div group."""
    concat = mb.concat

    def tiled(**given: Any) -> Any:
        values = list(given["values"])
        distinct = list(dict.fromkeys(values))
        if given["axis"] != 1 or len(distinct) in (1, len(values)):
            return concat(**given)
        return concat(values=distinct * (len(values) // len(distinct)), axis=1)

    patch.setattr(delta_net.mb, "concat", tiled)


def steps_come_first(patch: pytest.MonkeyPatch) -> None:
    """Betas and steps of a joined projection change places."""
    split = mb.split

    def swapped(**given: Any) -> Any:
        found = split(**given)
        return tuple(reversed(found)) if (given.get("num_splits"), given["axis"]) == (2, 3) else found

    patch.setattr(delta_net.mb, "split", swapped)


def nothing_is_carried(patch: pytest.MonkeyPatch) -> None:
    """Rows read the rows of their chunk alone."""
    read = chunks.ShardVars.read

    def forgetting(self: Any, kept: Any) -> Any:
        return mb.mul(x=read(self, kept), y=np.float16(0))

    patch.setattr(chunks.ShardVars, "read", forgetting)


def decays_have_no_step(patch: pytest.MonkeyPatch) -> None:
    """Softplus is left out."""
    patch.setattr(ssd, "softplus", lambda x: mb.identity(x=x))


PLANTED: dict[str, tuple[str, Plant]] = {
    "mamba2: segment sums": ("mamba2", sums_begin_one_place_late),
    "mamba2: no D": ("mamba2", nothing_is_skipped_to),
    "mamba2: state not carried": ("mamba2", nothing_is_carried),
    "mamba2: gate after norm": ("mamba2", gate_comes_after_the_norm),
    "mamba2: no softplus": ("mamba2", decays_have_no_step),
    "nemotron_h: groups": ("nemotron_h", groups_alternate),
    "qwen35: segment sums": ("qwen35", sums_begin_one_place_late),
    "qwen35: nothing taken back": ("qwen35", nothing_is_taken_back),
    "qwen35: grouped key heads": ("qwen35", key_heads_are_grouped),
    "qwen35: state not carried": ("qwen35", nothing_is_carried),
    "qwen3next: tiled key heads": ("qwen3next", key_heads_are_tiled),
    "qwen3next: steps first": ("qwen3next", steps_come_first),
}


@pytest.mark.fast_only("mamba2: no D")
@pytest.mark.parametrize("fault", slow_but(PLANTED, "mamba2: no D"))
def test_a_wrong_graph_is_red(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, plant = PLANTED[fault]
    plant(monkeypatch)
    artifact = converted(family, tmp_path)
    monkeypatch.undo()
    verdict = golden_without_stack(artifact, FAMILIES / f"{family}.gguf", "openvino")
    assert "shards/" in verdict.failures[0], "a shard alone shows it"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mamba2", "qwen35"])
def test_a_state_that_is_not_folded_is_red(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = converted(family, tmp_path)
    monkeypatch.setattr("anespec.validate.golden.gate._fold", lambda *given: None)
    verdict = golden_without_stack(artifact, FAMILIES / f"{family}.gguf", "openvino")
    assert "shards/" in verdict.failures[0], "a shard alone shows it"


@pytest.mark.parametrize("bug", slow_but(INPUT_BUGS, "rope of the row before"))
def test_wrong_inputs_are_red_beside_recurrent_layers(bug: str, tmp_path: Path) -> None:
    """A layer that attends ends its shard, so that no recurrent layer raises the limit of what it does."""
    artifact = converted("qwen35", tmp_path)
    assert [shard.end_layer for shard in artifact.manifest.layer_shards] == [4, 8]
    gguf, altered = FAMILIES / "qwen35.gguf", AlteredInputs(artifact, INPUT_BUGS[bug])
    verdict = golden_without_stack(artifact, gguf, "torch", pass_inputs=altered)
    assert "shards/" in verdict.failures[0], "a shard alone shows it"


def test_softplus_is_precise_at_both_ends(tmp_path: Path) -> None:
    """Small steps keep their digits in fp16, and large ones do not overflow."""
    x = np.array([-9, -7, -4, -1, 0, 1, 4, 10, 12, 60], np.float16).reshape(1, 10, 1, 1)
    given = (TensorSpec(name="x", shape=(1, 10, None, 1)),)
    program = reloaded(program_of(lambda v: chunks.softplus(v["x"]), given, "out"), tmp_path)
    exact = np.logaddexp(x.astype(np.float64), 0)
    for runner in (TorchRunner(program, 1), OpenVINORunner(program, 1)):
        np.testing.assert_allclose(runner.run({"x": x})["out"], exact, rtol=3e-3)


DAMAGED = {
    "heads that do not divide": (
        Variant("mamba2", {"ssm.time_step_rank": 7}),
        "an inner width of 128, states of 16, 7 heads and 1 groups are impossible for Mamba 2",
    ),
    "groups that do not divide": (Variant("mamba2", {"ssm.group_count": 3}), "8 heads and 3 groups"),
    "no state": (Variant("mamba2", {"ssm.state_size": 0}), "states of 0"),
    "a huge state": (Variant("mamba2", {"ssm.state_size": 10**9}), "states of 1000000000"),
    "one tap": (
        Variant("mamba2", {"ssm.conv_kernel": 1}),
        r"of 1 taps is impossible \(mamba2\.ssm\.conv_kernel\)",
    ),
    "another number of taps": (Variant("mamba2", {"ssm.conv_kernel": 5}), "blk.0.ssm_conv1d.weight"),
    "no norm": (Variant("mamba2", tensors={"blk.1.ssm_norm.weight": None}), "blk.1.ssm_norm"),
    "an MLP of one axis": (
        Variant("nemotron_h", tensors={"blk.1.ffn_up.weight": np.ones(64, np.float32)}),
        r"layer 1 has a matrix of shape \(64,\)",
    ),
    "layers that are said to predict later tokens": (
        Variant("qwen35", {"nextn_predict_layers": 4}),
        "block 4 only predicts later tokens, but there is no tensor 'blk.4.nextn.eh_proj.weight'",
    ),
    "more predicting blocks than blocks": (
        Variant("qwen35", {"nextn_predict_layers": 9}),
        "nextn_predict_layers' is 9, of 8 blocks",
    ),
    "no D": (Variant("mamba2", tensors={"blk.1.ssm_d": None}), "blk.1.ssm_d"),
    "no kernel": (Variant("granitehybrid", tensors={"blk.1.ssm_conv1d.weight": None}), "blk.1.ssm_conv1d"),
    "attention where the tensors are Mamba 2's": (
        Variant("granitehybrid", {"attention.head_count_kv": [2, 0, 2, 0, 0, 2]}),
        r"blk\.0\.",
    ),
    "an MLP where the tensors are Mamba 2's": (
        Variant("nemotron_h", {"feed_forward_length": [160, 160, 0, 0, 0, 0]}),
        "layer 0 has Mamba 2, but the metadata says that it has an MLP",
    ),
    "a delta net of another width": (
        Variant("qwen35", {"ssm.inner_size": 96}),
        "an inner width of 96, states of 16, 4 heads and 2 groups are impossible for a gated delta net",
    ),
    "attention in every layer": (
        Variant("qwen35", {"attention.recurrent_layers": None, "full_attention_interval": 1}),
        r"blk\.0\.",
    ),
    "attention in no layer's turn": (
        Variant("qwen35", {"attention.recurrent_layers": None, "full_attention_interval": 0}),
        "full_attention_interval is 0, but must be at least 1",
    ),
}


def changed(variant: Variant, folder: Path) -> Path:
    """The file of the variant's base, with its keys and tensors changed, and nothing else."""
    from gguf import GGUFReader, GGUFWriter
    from tiny_model import add_value

    base = GGUFReader(FAMILIES / f"{variant.base}.gguf")
    given = {name: field.contents() for name, field in base.fields.items() if not name.startswith("GGUF.")}
    architecture = given.pop("general.architecture")
    given |= {f"{architecture}.{name}": value for name, value in variant.keys.items()}
    writer = GGUFWriter(folder / "m.gguf", architecture)
    for name, value in given.items():
        if value is not None:
            add_value(writer, name, value)
    tensors = {tensor.name: tensor.data for tensor in base.tensors} | dict(variant.tensors)
    for name, values in tensors.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m.gguf"


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    variant, words = DAMAGED[name]
    with GGUFFile(changed(variant, tmp_path)) as file, pytest.raises(AnespecError, match=words):
        SourceModel(file)


def test_a_decay_that_lets_a_state_grow_is_refused(tmp_path: Path) -> None:
    growing = Variant("mamba2", tensors={"blk.2.ssm_a": np.full((8, 1), 0.5, np.float32)})
    changed(growing, tmp_path)
    with pytest.raises(GGUFError, match=r"blk\.2\.ssm_a' has a decay of 0\.5, which would let a state grow"):
        build(tmp_path / "m.gguf", tmp_path / "m.anespec", target=Target.CPU)


def test_a_file_larger_than_the_memory_is_said_to_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "machine_memory", lambda: 100_000)
    with GGUFFile(FAMILIES / "olmoe.gguf") as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions())
        notes = list(conversion_notes(plan, file.path, tmp_path / "m.anespec"))
    assert notes[-1].startswith(
        "olmoe.gguf has 892.7 kB, more than this machine's memory (100.0 kB); it is mapped"
    )


@pytest.mark.parametrize(("base", "layers"), [("qwen35", 8), ("deepseek2", 4)])
def test_blocks_that_predict_later_tokens_are_left_out(base: str, layers: int, tmp_path: Path) -> None:
    """A file of one more block, which only predicts, is one of the layers before it."""
    more = {"block_count": layers + 1, "nextn_predict_layers": 1, "attention.recurrent_layers": None}
    block = {f"blk.{layers}.nextn.eh_proj.weight": np.ones((64, 128), np.float16)}
    with GGUFFile(changed(Variant(base, more, block), tmp_path)) as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions())
        facts = plan.model.facts
        note, _ = conversion_notes(plan, file.path, tmp_path / "m.anespec")
    assert len(facts.layers) == layers and facts.left_out == range(layers, layers + 1)
    assert note == "1 block of multi-token prediction (MTP) will be left out"
    shown = CliRunner().invoke(inspect, [str(file.path)], terminal_width=200).output
    assert "1 block of multi-token prediction (MTP)" in shown
