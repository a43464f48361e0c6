"""What `anespec inspect` says of a plan and of an artifact."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from commands import run
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import KVForm


def sparse_gguf(
    path: Path, architecture: str, shapes: dict[str, tuple[int, ...]], keys: dict[str, float]
) -> Path:
    """A GGUF whose tensors are a hole in the file: all sizes of a large model, and no bytes on the disk."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{architecture}.{key}", value)
    for name, shape in shapes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float16), 2 * math.prod(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    data = sum(-(-2 * math.prod(shape) // 32) * 32 for shape in shapes.values())
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + data)
    return path


def big_llama(path: Path, layers: int = 30) -> Path:
    """A Llama of 30 layers of 100.7 MB in int8 and 50000 tokens."""
    d, ff, kv = 3072, 8192, 1024
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (50_000, d), "output_norm.weight": (d,)}
    for i in range(layers):
        matrices = {"attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d)}
        matrices |= {"ffn_gate": (ff, d), "ffn_up": (ff, d), "ffn_down": (d, ff)}
        shapes |= {f"blk.{i}.{role}.weight": shape for role, shape in matrices.items()}
        shapes |= {f"blk.{i}.attn_norm.weight": (d,), f"blk.{i}.ffn_norm.weight": (d,)}
    keys = {"embedding_length": d, "block_count": layers, "feed_forward_length": ff, "context_length": 4096}
    keys |= {"attention.head_count": 24, "attention.head_count_kv": 8}
    return sparse_gguf(path, "llama", shapes, {**keys, "attention.layer_norm_rms_epsilon": 1e-5})


def phi_4_mini(path: Path) -> Path:
    """A GGUF of Phi-4-mini's sizes, its projections fused as llama.cpp's converter writes them."""
    d, ff = 3072, 8192
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (200_064, d), "output_norm.weight": (d,)}
    for i in range(32):
        matrices = {"attn_qkv": (5120, d), "attn_output": (d, d), "ffn_up": (2 * ff, d), "ffn_down": (d, ff)}
        shapes |= {f"blk.{i}.{role}.weight": shape for role, shape in matrices.items()}
        shapes |= {f"blk.{i}.attn_norm.weight": (d,), f"blk.{i}.ffn_norm.weight": (d,)}
    keys = {"embedding_length": d, "block_count": 32, "feed_forward_length": ff, "context_length": 131_072}
    keys |= {"attention.head_count": 24, "attention.head_count_kv": 8, "rope.dimension_count": 96}
    return sparse_gguf(path, "phi3", shapes, {**keys, "attention.layer_norm_rms_epsilon": 1e-5})


@pytest.mark.slow
def test_a_large_model_is_explained(tmp_path: Path) -> None:
    facts = run("inspect", big_llama(tmp_path / "m.gguf"), "--target", "mac", "--plan", "--json").json
    assert facts["topology"] == [8, 8, 7, 7]
    assert facts["topology_from"] == "planned"
    plan = facts["plan"]
    shards = plan["layer_shards"]
    assert [shard["layers"] for shard in shards] == [[0, 8], [8, 16], [16, 23], [23, 30]]
    assert {shard["size_range"]["outlook"] for shard in shards} == {"good"}
    assert sum(shard["bytes"] for shard in shards) == sum(facts["layer_bytes"]) == 30 * 100_718_592
    assert sum(end - first for first, end in (shard["tokens"] for shard in plan["head_shards"])) == 50_000
    assert plan["process_bytes"] == 3_000_000_000
    assert plan["state_bytes"] == 2 * 2 * 30 * 8 * 128 * 2048
    assert any("one process holds" in warning for warning in plan["warnings"])


@pytest.mark.slow
def test_what_kv_cost_a_pass_is_told_for_every_form_and_shorter_contexts(tmp_path: Path) -> None:
    """30 layers with 8 KV heads of 128, 2048 slots, a block of 4: K and V of a slot take 4 KiB a layer."""
    facts = run("inspect", big_llama(tmp_path / "m.gguf"), "--target", "mac", "--plan", "--json").json
    found = {(each["kv_form"], each["context"]): each for each in facts["plan"]["kv_traffic"]}
    assert {form for form, _ in found} == set(KVForm)
    assert {context for _, context in found} == {2048, 1024, 512}
    slot, weights = 30 * 4096, facts["plan"]["weight_bytes"]
    for context in (2048, 1024, 512):
        for form in set(KVForm) - {KVForm.OUTSIDE, KVForm.AT_POSITION}:
            assert found[form, context]["written_bytes"] == slot * context
            assert found[form, context]["touched_bytes"] == 3 * slot * context
        for form in (KVForm.OUTSIDE, KVForm.AT_POSITION):
            assert found[form, context]["written_bytes"] == slot * 4
        assert found[KVForm.OUTSIDE, context]["touched_bytes"] == slot * (4 + 3 * context)
        assert found[KVForm.AT_POSITION, context]["touched_bytes"] == slot * (4 + context + 64)
    share = found[KVForm.BLENDED, 2048]["share_of_pass"]
    assert share == pytest.approx(3 * slot * 2048 / (3 * slot * 2048 + weights), abs=1e-4)
    text = run("inspect", tmp_path / "m.gguf", "--target", "mac", "--plan").out
    assert re.search(r"at_position +491.5 kB", text)


@pytest.mark.slow
def test_the_explanation_reads_well(tmp_path: Path) -> None:
    path = big_llama(tmp_path / "m.gguf")
    flat = " ".join(run("inspect", path, "--target", "mac", "--plan", "--topology", "24,6").out.split())
    for words in (
        "layers 0 to 23", "24 full", "2.42 GB", "--topology requests 24+6 layers",
        "head 50000 tokens", "in 1 shard", "4 convolutions",
        "warning: Layers 0-23", "2.3 GB ran wholly on the CPU",
    ):  # fmt: skip
        assert words in flat
    here = " ".join(run("inspect", path).out.split())
    assert re.search(r" 1 x (\d+) slots \(4 x \1 for chat, run, generate and serve\)", here)
    phone = " ".join(run("inspect", path, "--plan", "--target", "iphone").out.split())
    assert "1 x 1024 slots, " in phone
    assert "per_kv_head attention" in phone
    assert "a phone app is one process" in phone


@pytest.mark.slow
def test_convert_warns_of_an_override_out_of_band(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", TinyModel())
    noisy = run("convert", source, "-o", tmp_path / "b.anespec", "--target", "mac", "--topology", "1,1")
    assert noisy.code == 0
    assert "note: Layers 0, 1" in noisy.err


@pytest.mark.slow
def test_what_is_known_of_the_first_use_is_said_before_and_after(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", TinyModel())
    planned = run("inspect", source, "--target", "mac", "--plan", "--json").json["plan"]["first_use"]
    assert "112 s for 1 and 133 s for 4, measured once" in planned
    made = run("convert", source, "-o", tmp_path / "m.anespec", "--target", "mac")
    for text in (run("inspect", source, "--target", "mac", "--plan").out, made.out):
        assert "First use: Core ML may prepare a range anew" in text
    assert "First use" not in run("inspect", source, "--target", "cpu", "--plan").out


@pytest.mark.slow
def test_phi_4_mini_gets_its_preset(tmp_path: Path) -> None:
    path = phi_4_mini(tmp_path / "m.gguf")
    facts = run("inspect", path, "--target", "mac", "--plan", "--json").json
    assert facts["topology"] == [20, 4, 6, 2]
    assert (facts["topology_from"], facts["preset"]) == ("preset", "phi-4-mini")
    assert facts["plan"]["preset"]["differences"] == []
    assert facts["head_shards"] == [200_064]
    for options in (("--preset", "none"), ("--target", "cpu"), ("--weights", "fp16")):
        assert run("inspect", path, "--target", "mac", *options, "--json").json["topology_from"] == "planned"


def test_a_preset_for_another_model_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", TinyModel())
    outcome = run("inspect", source, "--preset", "phi-4-mini")
    assert outcome.code == 7
    assert outcome.is_one_sentence()
    assert "32 layers, but the model has 2" in outcome.err
    assert run("inspect", source, "--preset", "x").code == 2


@pytest.mark.slow
def test_an_artifact_is_described(artifact: Path, gguf: Path) -> None:
    facts = run("inspect", artifact, "--json").json
    assert facts["source"]["name"] == gguf.name
    assert sum(facts["topology"]) == facts["hyperparameters"]["layers"]
    assert facts["layer_shards"][0]["path"].startswith("shards/layers_00_")
    on_disk = sum(file.stat().st_size for file in (artifact / "shards").rglob("*") if file.is_file())
    assert facts["bytes"] == on_disk + (artifact / "tokens.gguf").stat().st_size
    sizes = facts["hyperparameters"]
    slots = facts["context"] * facts["sequences"]
    assert facts["state_bytes"] == 4 * sizes["layers"] * sizes["kv_heads"] * sizes["head_dim"] * slots
    shown = run("inspect", artifact)
    assert shown.code == 0, shown.err
    assert "head_00" in shown.out


@pytest.mark.slow
def test_an_artifact_shows_what_its_gates_found(artifact: Path) -> None:
    assert run("validate", artifact, "--backend", "torch", "--quick", "--threads", 1).code == 0
    gates = run("inspect", artifact, "--json").json["gates"]
    torch = {verdict["gate"]: verdict for verdict in gates if verdict["backend"] == "torch"}
    assert torch["golden"]["standing"] == "pass"
    assert torch["exactness"]["standing"] == "pass"
    assert "no cases: region" in torch["exactness"]["finding"]
    assert "lane" in torch["exactness"]["finding"]
    rules = next(verdict for verdict in gates if verdict["gate"] == "residency")
    assert rules["backend"] == "rules"
    assert rules["standing"] == "reported"
    assert not rules["decides"]
    shown = run("inspect", artifact).out
    assert "pass" in shown
    assert "reported" in shown
    assert not any(word in shown for word in ("passed", "noted", "red "))
    text = artifact / "text.txt"
    text.write_text("One day a little girl went out to play.")
    chosen = ("--gate", "quality", "--backend", "torch", "--threads", 1)
    assert run("validate", artifact, *chosen, "--quality", text, "--max-kl", 0).code == 14
    quality = next(v for v in run("inspect", artifact, "--json").json["gates"] if v["gate"] == "quality")
    assert quality["standing"] == "fail"
    assert quality["decides"]
    assert "KL" in quality["finding"]


@pytest.mark.slow
def test_an_artifact_without_verdicts_of_now_says_why(artifact: Path, tmp_path: Path) -> None:
    copy = tmp_path / "m.anespec"
    shutil.copytree(artifact, copy, ignore=shutil.ignore_patterns("gates"))
    assert f"No gate has judged it yet: anespec validate {copy}" in run("inspect", copy).out
    assert run("validate", copy, "--gate", "residency").code == 0
    assert "No gate has judged" not in run("inspect", copy).out
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["tokens"]["embedding_scale"] = 7.0
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert f"No gate has judged it since it changed: anespec validate {copy}" in run("inspect", copy).out


@pytest.mark.slow
def test_an_artifact_shows_residency_and_quality_too(artifact: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat. " * 8)
    chosen = ("--gate", "residency", "--gate", "quality", "--quality", text, "--quality-tokens", 30)
    assert run("validate", artifact, "--backend", "torch", "--threads", 1, *chosen).code == 0
    gates = {gate["gate"]: gate for gate in run("inspect", artifact, "--json").json["gates"]}
    assert gates["residency"] | {"standing": "reported", "decides": False} == gates["residency"]
    assert "predicted: 0 of 2 shards" in gates["residency"]["finding"]
    assert gates["quality"]["standing"] == "reported"
    assert "only 30 tokens scored" in gates["quality"]["finding"]
    assert "30 tokens of text.txt" in gates["quality"]["finding"]
    shown = run("inspect", artifact).out
    assert "reported" in shown
    assert "No gate" not in shown


def test_without_plan_it_stays_short(gguf: Path) -> None:
    outcome = run("inspect", gguf)
    assert len(outcome.out.splitlines()) < 16
    assert "what is known" not in outcome.out


def test_a_name_cannot_move_the_cursor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"general.name": "\x1b[2Jgone"})
    outcome = run("inspect", path)
    assert "\x1b" not in outcome.out
    assert r"\x1b[2Jgone" in outcome.out


def test_a_folder_that_is_no_artifact(tmp_path: Path) -> None:
    outcome = run("inspect", tmp_path)
    assert outcome.code == 5
    assert outcome.is_one_sentence()


@pytest.mark.slow
def test_measured_choices_hold_unless_something_else_is_typed(tmp_path: Path, gguf: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(
        '{"choices": {"source": "tune", "machine": "a machine", "measured_at": "2026-11-01T00:00:00Z", '
        '"target": "cpu", "weights": "fp16", "block": 2}}'
    )
    facts = run("inspect", gguf, "--tuned", report, "--json").json
    assert (facts["target"], facts["weights"], facts["block"]) == ("cpu", "fp16", 2)
    # The default, typed, is what somebody asked for.
    facts = run("inspect", gguf, "--tuned", report, "--block", 4, "--json").json
    assert (facts["weights"], facts["block"]) == ("fp16", 4)
    assert "measured on a machine: --weights fp16, --block 2" in run("inspect", gguf, "--tuned", report).out
    refused = run("inspect", gguf, "--tuned", report, "--target", "mac")
    assert refused.code == 7
    assert refused.is_one_sentence()


@pytest.mark.slow
def test_a_plan_for_a_mac_predicts_its_speed(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", TinyModel())
    plan = run("inspect", source, "--target", "mac", "--plan", "--json").json["plan"]
    assert plan["predicted"]["work"]["dispatches"] == len(plan["layer_shards"]) + len(plan["head_shards"])
    assert plan["predicted"]["work"]["weight_bytes"] == plan["weight_bytes"]
    shown = " ".join(run("inspect", source, "--target", "mac", "--plan").out.split())
    assert "predicted and not measured" in shown
    assert "constants.py" in shown
    for target in ("cpu", "iphone"):
        assert (
            run("inspect", source, "--target", target, "--plan", "--json").json["plan"]["predicted"] is None
        )
        assert "tokens/s" not in run("inspect", source, "--target", target, "--plan").out
