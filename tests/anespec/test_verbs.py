"""Every verb end to end, its --json, and its exit codes."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import CommandResult, command_of, run
from patience import PATIENCE
from slow import slow_but

IDS = [5, 17, 300, 41, 5, 17, 300, 41, 5, 17]


def test_inspect_says_what_would_be_built(gguf: Path) -> None:
    facts = run("inspect", gguf, "--target", "cpu", "--topology", "3,1", "--json").json
    assert facts["convertible"] is True
    assert facts["architecture"] == "llama"
    assert sum(facts["topology"]) == facts["hyperparameters"]["layers"]
    assert facts["bytes"] == gguf.stat().st_size
    text = run("inspect", gguf)
    assert text.code == 0
    assert "would build" in text.out


def test_inspect_names_what_is_unsupported(gguf: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes().replace(b"llama", b"mamba"))
    outcome = run("inspect", other, "--json")
    assert outcome.code == 0
    assert outcome.json["convertible"] is False
    assert any("mamba" in problem for problem in outcome.json["unsupported"])
    refused = run("convert", other, "-o", tmp_path / "x.anespec")
    assert refused.code == 4
    assert refused.is_one_sentence()
    assert [path.name for path in tmp_path.iterdir()] == ["other.gguf"]


def test_convert_reports_and_is_up_to_date_the_second_time(gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.anespec"
    first = run("convert", gguf, "-o", target, "--target", "cpu", "--json").json
    assert first["up_to_date"] is False
    assert first["peak_memory_bytes"] > 0
    assert all((target / name).exists() for name in first["files"])
    assert run("convert", gguf, "-o", target, "--target", "cpu", "--json").json["up_to_date"] is True
    refused = run("convert", gguf, "-o", target, "--target", "cpu", "--block", "8")
    assert refused.code == 2
    assert refused.is_one_sentence()
    assert "--force" in refused.err
    assert run("convert", gguf, "-o", target, "--target", "cpu", "--block", "8", "--force").code == 0


@pytest.mark.slow
def test_convert_says_what_storing_the_weights_added(gguf: Path, tmp_path: Path) -> None:
    options = ("--target", "cpu", "--weights", "int8-channel,mlp=int4-block32,head=lut6")
    text = run("convert", gguf, "-o", tmp_path / "a.anespec", *options).out
    assert "int8-channel (" in text
    assert "lut6 (1 tensor," in text
    assert "added to the GGUF's own error (most in blk." in text
    facts = run("convert", gguf, "-o", tmp_path / "a.anespec", *options, "--json").json["weights"]
    formats = {tensor["projection"].split("_", 2)[-1]: tensor["weights"] for tensor in facts["tensors"]}
    assert {formats[name] for name in ("q", "k", "v", "output")} == {"int8-channel"}
    assert formats["0"] == "lut6"
    assert 0 < facts["relative_error"] < 0.2
    assert facts["lossless"] is False
    assert sum(tensor["bytes"] for tensor in facts["tensors"]) == facts["bytes"]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("int9", "choose one of fp16, int8-block32"),
        ("fp16,nose=lut4", "choose one of attention, convolution, mlp, per_layer"),
    ],
)
def test_an_unknown_weight_format_or_kind_lists_what_there_is(gguf: Path, weights: str, said: str) -> None:
    outcome = run("inspect", gguf, "--weights", weights)
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())


@pytest.mark.slow
def test_convert_names_the_artifact_after_the_file(gguf: Path, tmp_path: Path) -> None:
    assert run("convert", gguf, "--target", "cpu", cwd=tmp_path).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["llama.anespec"]


@pytest.mark.fast_only("options6-7")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--topology", "1,9"), 7),
        (("--topology", "x"), 2),
        (("--block", "0"), 2),
        (("--context", "2", "--block", "4"), 7),
        (("-o", "/"), 6),
        (("-o", "."), 2),
        (("--head-shards", "100000"), 7),
        (("--target", "toaster"), 2),
    ],
)
def test_options_that_do_not_fit_are_refused(
    gguf: Path, tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    outcome = run("convert", gguf, "-o", tmp_path / "a.anespec", *options)
    assert outcome.code == code
    assert "Traceback" not in outcome.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "openvino"))
def test_validate_runs_both_gates_and_records_them(artifact: Path, backend: str) -> None:
    outcome = run("validate", artifact, "--backend", backend, "--quick", "--threads", 1, "--json")
    assert outcome.code == 0, outcome.err
    gates = {gate["name"]: gate for gate in outcome.json["gates"]}
    assert gates["golden"]["standing"] == "pass"
    assert gates["exactness"]["standing"] == "pass"
    for name in ("golden", "exactness"):
        verdicts = json.loads((artifact / "gates" / f"{name}.json").read_text())["verdicts"]
        assert backend in [verdict["circumstances"]["backend"] for verdict in verdicts]


@pytest.mark.slow
def test_validate_finds_a_damaged_shard(artifact: Path, gguf: Path, tmp_path: Path) -> None:
    """Weights that are not the GGUF's, with the manifest's hashes made to fit: only the gate can tell."""
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.schema import Manifest
    from anespec.manifests.store import package_sha256

    broken = tmp_path / "broken.anespec"
    shutil.copytree(artifact, broken)
    manifest = Manifest.model_validate_json((broken / "manifest.json").read_text())
    shard = manifest.layer_shards[0]
    weights = next((broken / shard.path).rglob("weight.bin"))
    with GGUFFile(gguf) as file:
        down = file.raw("blk.0.ffn_down.weight").copy()
    data = weights.read_bytes()
    assert data.count(down.tobytes()) == 1
    weights.write_bytes(data.replace(down.tobytes(), np.roll(down, 1, axis=0).tobytes()))
    fitting = shard.model_copy(update={"sha256": package_sha256(broken / shard.path)})
    changed = manifest.model_copy(update={"layer_shards": (fitting, *manifest.layer_shards[1:])})
    (broken / "manifest.json").write_text(changed.model_dump_json())
    outcome = run("validate", broken, "--gate", "golden", "--threads", 1)
    assert outcome.code == 12
    assert "error: " in outcome.err
    assert 'class="red" href="#golden"' in (broken / "report.html").read_text()


@pytest.mark.slow
def test_quality_is_a_report_and_with_a_limit_a_gate(trained: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.py"
    text.write_text("def area(width, height):\n    return width * height\n" * 8)
    common = ("validate", trained, "--gate", "quality", "--quality", text, "--threads", 1)
    report = run(*common, "--quality-tokens", 40, "--json")
    assert report.code == 0, report.err
    page = Path(report.json["report"]).read_text()
    assert "text.py" in page
    assert 'class="noted" href="#quality"' in page
    (gate,) = report.json["gates"]
    assert gate["tokens"] == 40
    assert 0 < gate["figures"]["figures"]["kl"]["mean"] < 0.01
    assert gate["perplexity"] == pytest.approx(gate["reference_perplexity"], rel=0.05)
    red = run(*common, "--max-kl", 1e-9, "--max-perplexity-change", "50%")
    assert red.code == 14
    assert "40 tokens" not in red.err
    assert "1e-09" in red.err
    assert "perplexity change" in red.out
    assert red.ends_in_one_sentence()
    assert 'class="red" href="#quality"' in (trained / "report.html").read_text()


@pytest.mark.fast_only("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-options1-2")
@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        ("", (), 7),
        ("x" * 40, ("--max-perplexity-change", "-1%"), 2),
        ("x" * 40, ("--quality-tokens", "0"), 2),
        (None, (), 6),
        (None, ("--max-kl", "1"), 6),
    ],
)
def test_texts_and_limits_that_do_not_fit_are_refused(
    artifact: Path, tmp_path: Path, content: str | None, options: tuple[str, ...], code: int
) -> None:
    text = tmp_path / "text"
    if content is not None:
        text.write_text(content)
    outcome = run("validate", artifact, "--gate", "quality", "--quality", text, *options)
    assert outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("options", [("--gate", "quality"), ("--max-kl", "1")])
def test_quality_needs_a_text(artifact: Path, options: tuple[str, ...]) -> None:
    outcome = run("validate", artifact, *options)
    assert outcome.code == 2
    assert "--quality TEXT" in outcome.err


def test_validate_needs_the_source(artifact: Path, tmp_path: Path, gguf: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf.read_bytes() + b"\0")
    outcome = run("validate", artifact, "--gate", "golden", "--gguf", other, "--again")
    assert outcome.code == 5
    assert outcome.ends_in_one_sentence()


def _prompt_file(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "openvino"))
@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.8", "--seed", "3", "--top-k", "2")])
def test_generate_is_the_same_with_and_without_drafts(
    trained: Path, tmp_path: Path, backend: str, sampling: tuple[str, ...]
) -> None:
    prompts = _prompt_file(tmp_path, {"prompt_ids": IDS}, {"prompt": "one two one two one"})
    common = ("--prompt-file", prompts, "--backend", backend, "--threads", 1, "-n", 40, "--ignore-eos")
    texts, accepted = [], 0
    for drafter in ("none", "lookup"):
        outcome = run("generate", trained, *common, *sampling, "--drafter", drafter)
        assert outcome.code == 0, outcome.err
        rows = [json.loads(line) for line in outcome.out.splitlines()]
        texts.append([(row["prompt_ids"], row["output_ids"], row["text"]) for row in rows])
        assert [len(row["output_ids"]) for row in rows] == [40, 40]
        assert {row["finish_reason"] for row in rows} == {"length"}
        accepted += sum(sum(row["accepted_by_position"]) for row in rows)
    assert texts[0] == texts[1]
    assert accepted > 0


def test_generate_prints_one_object_with_what_the_issue_names(artifact: Path) -> None:
    facts = run("generate", artifact, "-p", "hello", "-n", 5, "--json", "--threads", 1).json
    names = ("prompt_ids", "output_ids", "text", "passes", "tokens_per_pass", "accepted_by_position")
    assert set(names) <= facts.keys()
    assert {"load", "prefill", "decode"} <= facts["seconds"].keys()


@pytest.mark.slow
def test_generate_measures_exactness_where_it_never_was(gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "fresh.anespec"
    assert run("convert", gguf, "-o", target, "--target", "cpu").code == 0
    assert not (target / "gates").exists()
    assert run("generate", target, "-p", "hello", "-n", 3, "--threads", 1).code == 0
    verdicts = json.loads((target / "gates" / "exactness.json").read_text())["verdicts"]
    assert [verdict["form"] for verdict in verdicts] == ["quick"]


@pytest.mark.slow
def test_generate_without_a_proof_does_not_speculate(artifact: Path, tmp_path: Path) -> None:
    distrusted = tmp_path / "distrusted.anespec"
    shutil.copytree(artifact, distrusted)
    assert run("generate", distrusted, "-p", "x", "-n", 1, "--threads", 1).code == 0
    path = distrusted / "gates" / "exactness.json"
    file = json.loads(path.read_text())
    for verdict in file["verdicts"]:
        for row in verdict["invariances"]:
            row["unequal"] = row["unequal"] + (row["invariance"] == "partition")
    path.write_text(json.dumps(file))
    prompts = _prompt_file(tmp_path, {"prompt_ids": IDS})
    arguments = ("generate", distrusted, "--prompt-file", prompts, "-n", 30, "--ignore-eos", "--threads", 1)
    plain = run(*arguments)
    assert "speculation may change the text" in plain.err
    assert sum(json.loads(plain.out)["proposed_by_position"]) == 0
    assert sum(json.loads(run(*arguments, "--allow-inexact").out)["proposed_by_position"]) > 0


@pytest.mark.slow
def test_stop_strings_end_the_text_before_them(artifact: Path) -> None:
    whole = run("generate", artifact, "-p", "hello", "-n", 30, "--ignore-eos", "--json", "--threads", 1).json
    stop = whole["text"][8:11]
    arguments = ("-p", "hello", "-n", 30, "--ignore-eos", "--stop", stop, "--json", "--threads", 1)
    cut = run("generate", artifact, *arguments).json
    assert cut["text"] == whole["text"][: whole["text"].find(stop)]
    assert cut["finish_reason"] == "stop"
    assert len(cut["output_ids"]) < len(whole["output_ids"])


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"prompt": 1}', '{"prompt_ids": [1.5]}', '{"prompt": "x", "prompt_ids": [1]}', "{}"],
)
def test_malformed_prompt_files_are_refused_before_anything_runs(
    artifact: Path, tmp_path: Path, line: str
) -> None:
    outcome = run("generate", artifact, "--prompt-file", _prompt_file(tmp_path, {"prompt": "a"}, line))
    assert outcome.code == 7
    assert outcome.is_one_sentence()
    assert "line 2" in outcome.err
    assert outcome.out == ""


@pytest.mark.slow
def test_prompt_files_may_have_what_json_allows(artifact: Path, tmp_path: Path) -> None:
    """A mark at the start, line ends of other systems, and line separators inside a text."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b\xe2\x80\xa8c\xc2\x85"}\r\n')
    outcome = run("generate", artifact, "--prompt-file", path, "-n", 1, "--threads", 1)
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.strip().split("\n")) == 2


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"prompt": "\xff"}'])
def test_prompt_files_of_something_else_are_refused(artifact: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    outcome = run("generate", artifact, "--prompt-file", path)
    assert outcome.code == 7
    assert outcome.is_one_sentence()


@pytest.mark.fast_only("< /bin/sh")
@pytest.mark.parametrize("redirection", ["<&-", "< /bin/sh"])
def test_standard_input_that_is_no_text(artifact: Path, redirection: str) -> None:
    """Closed, and binary."""
    command = f"{shlex.join(command_of('generate', artifact, '-p', '-', '--threads', 1))} {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False)
    outcome = CommandResult(done.returncode, done.stdout, done.stderr)
    assert outcome.code == 7
    assert outcome.is_one_sentence()


@pytest.mark.parametrize(
    "arguments", [("--topology", "x"), ("--topology", "9" * 5000), ("--block", "x"), ("--no",)]
)
def test_wrong_usage_is_json_too(gguf: Path, arguments: tuple[str, ...]) -> None:
    outcome = run("inspect", gguf, *arguments, "--json")
    assert outcome.code == outcome.json["exit_code"] == 2
    assert outcome.json["error"]
    assert "Traceback" not in outcome.err


@pytest.mark.fast_only("arguments1-2")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-p", "x", "--backend", "abacus"), 2),
        (("-p", "x", "--threads", "1000000"), 2),
        (("-p", "x", "--temperature", "-1"), 2),
        (("-p", "x", "--logit-bias", "100000000=1"), 7),
        (("-p", "x", "--prompt-file", "y"), 2),
        ((), 2),
        (("--prompt-file", "nowhere.jsonl"), 8),
        (("-p", "word " * 5000), 7),
    ],
)
def test_requests_that_cannot_be_served(artifact: Path, arguments: tuple[str, ...], code: int) -> None:
    outcome = run("generate", artifact, *arguments)
    assert outcome.code == code
    assert "Traceback" not in outcome.err


def test_errors_are_json_too(tmp_path: Path) -> None:
    outcome = run("generate", tmp_path, "-p", "x", "--json")
    assert outcome.code == 5
    assert outcome.json["exit_code"] == 5
    assert outcome.is_one_sentence()
