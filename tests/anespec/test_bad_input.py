"""Files that are not what they say: one sentence, the documented code, nothing left behind."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from commands import run
from converting import build
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.cli.verbs.validate import validate

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "tokenizers"


def _refused(gguf: Path, folder: Path, code: int) -> str:
    before = sorted(path.name for path in folder.iterdir())
    outcome = run("convert", gguf, "-o", folder / "out.anespec")
    assert outcome.code == code, outcome.err
    assert outcome.is_one_sentence(), outcome.err
    assert sorted(path.name for path in folder.iterdir()) == before
    return outcome.err


def test_truncated_anywhere(gguf: Path, tmp_path: Path) -> None:
    from anespec.gguf.container import GGUFFile
    from anespec.system.errors import GGUFError

    data = gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    for place in range(20):
        path.write_bytes(data[: len(data) * place // 20])
        with pytest.raises(GGUFError):
            GGUFFile(path)
    assert "truncated" in _refused(path, tmp_path, 3)


def test_wrong_magic(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "not a GGUF" in _refused(path, tmp_path, 3)


def test_huge_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little") * 2 + bytes(1000))
    assert str(1 << 60) in _refused(path, tmp_path, 3)


def test_duplicate_key_in_a_real_file(tmp_path: Path) -> None:
    path = SHARED / "malformed-duplicate-key.vocab.gguf"
    if not path.is_file():
        pytest.skip("needs shared/ beside the repository")
    assert "general.file_type" in _refused(path, tmp_path, 3)


def test_vocabulary_without_a_model(tmp_path: Path) -> None:
    path = SHARED / "llama-spm.vocab.gguf"
    if not path.is_file():
        pytest.skip("needs shared/ beside the repository")
    assert "token_embd.weight" in _refused(path, tmp_path, 3)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no such file" in _refused(tmp_path / "none.gguf", tmp_path, 8)
    assert "folder" in _refused(tmp_path, tmp_path, 6)


@pytest.mark.parametrize("verb", ["convert", "inspect", "validate", "generate", "serve"])
def test_links_that_lead_nowhere_and_other_schemes_are_named(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, target in (("one", "two"), ("two", "one"), ("gone", "none.gguf")):
        Path(name).symlink_to(target)
    given = ["hi"] if verb == "generate" else []
    for name, said in (
        ("one", "it is a link to two, where nothing is"),
        ("gone", "it is a link to none.gguf, where nothing is"),
        ("file:/tmp/x.gguf", "file: is not read: give a path, an https:// URL or hf:OWNER/REPO"),
        ("S3://bucket/x.gguf", "S3: is not read: give a path"),
    ):
        outcome = run(verb, name, *given)
        assert outcome.code == 8 and said in " ".join(outcome.err.split())


def test_metadata_of_other_types_and_with_marks_of_style_is_shown(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m[bold].gguf",
        metadata={"tokenizer.ggml.pre": [1, 2], "general.name": "[bold]x[/nope]", "tokenizer.ggml.model": 3},
    )
    assert run("inspect", path, "--json").json["pre_tokenizer"] is None
    shown = run("inspect", path)
    assert shown.code == 0, shown.err
    assert "[bold]x[/nope]" in shown.out
    assert "m[bold].gguf" in "".join(line.strip() for line in shown.out.splitlines())


@pytest.mark.slow
def test_a_prompt_far_too_long_is_refused_without_reading_it(artifact: Path) -> None:
    text = "word " * 1_000_000
    outcome = run("generate", artifact, "-p", "-", "--threads", 1, stdin=text)
    assert outcome.code == 7
    assert f"{len(text)} characters" in outcome.err
    assert outcome.ends_in_one_sentence()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is a pipe" in _refused(tmp_path / "pipe.gguf", tmp_path, 6)


def test_a_model_that_is_longer_than_its_tensors_is_not_read_to_its_end(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(gguf.read_bytes())
    os.truncate(path, 3 << 40)
    outcome = run("generate", path, "-p", "hello")
    assert outcome.code == 3 and outcome.ends_in_one_sentence(), outcome.err
    assert "3298534883328 bytes long" in outcome.err


@pytest.mark.parametrize("name", ["\udcff.anespec", "x" * 300])
def test_names_that_a_file_system_or_a_library_refuses(gguf: Path, tmp_path: Path, name: str) -> None:
    outcome = run("convert", gguf, "-o", tmp_path / name, "--json")
    assert outcome.code == outcome.json["exit_code"] == 6
    assert outcome.is_one_sentence()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino"], "openvino"))
def test_a_model_that_overflows_has_a_red_gate_and_no_text(tmp_path: Path, backend: str) -> None:
    """Each weight is within fp16's range, but what a layer computes is not."""
    huge = np.full((64, 32), 60000, np.float32)
    source = write_gguf(tmp_path / "m.gguf", tensors={"blk.0.ffn_up.weight": huge})
    artifact = build(source, tmp_path / "m.anespec").path
    common = ("--backend", backend, "--threads", 1, "--json")
    asked = ("generate", artifact, "-p", "t1", "--drafter", "none", *common)
    text = run(*asked, "--gates", "never")
    # OpenVINO's norm may make zeros of infinities, and the logits numbers: then only the gate shows it.
    if backend == "torch" or text.code:
        assert text.code == text.json["exit_code"] == 1
        assert "not finite" in text.json["error"]
    gate = run("validate", artifact, "--gate", "golden", *common)
    assert gate.code == gate.json["exit_code"] == 12
    assert gate.json["standing"] == "fail"
    assert gate.json["gates"][0]["failures"]
    assert gate.is_one_sentence()
    refused = run(*asked)
    assert refused.code == refused.json["exit_code"] == 12
    assert "Warning" not in text.err


def of_nothing(folder: Path, value: float, names: Iterable[str]) -> Path:
    tensors = {name: np.full_like(TinyModel().tensors()[name], value) for name in names}
    return build(write_gguf(folder / "m.gguf", tensors=tensors), folder / "m.anespec").path


@pytest.mark.slow
def test_weights_that_are_all_zero_compute_what_they_mean(tmp_path: Path) -> None:
    artifact = of_nothing(tmp_path, 0.0, TinyModel().tensors())
    outcome = run("validate", artifact, "--gate", "golden", "--backend", "torch", "--threads", 1, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["standing"] == "pass"


@pytest.mark.slow
def test_embeddings_that_are_no_numbers_are_judged_without_a_crash(tmp_path: Path) -> None:
    artifact = of_nothing(tmp_path, np.nan, ["token_embd.weight"])
    outcome = run("validate", artifact, "--gate", "golden", "--backend", "torch", "--threads", 1, "--json")
    assert outcome.code == outcome.json["exit_code"] == 5
    assert outcome.is_one_sentence()


@pytest.mark.parametrize("value", ["nan", "-1", "inf", "x"])
@pytest.mark.parametrize("limit", ["--max-kl", "--max-perplexity-change"])
def test_a_limit_that_no_value_or_every_value_is_above_is_wrong_usage(limit: str, value: str) -> None:
    outcome = CliRunner().invoke(validate, ["m.anespec", "--quality", "text.txt", limit, value])
    assert outcome.exit_code == 2, outcome.output
    assert f"Invalid value for '{limit}'" in outcome.output


@pytest.mark.slow
def test_a_gguf_to_compare_with_that_is_not_there_is_said_to_be_missing(
    artifact: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "nope.gguf"
    outcome = run("validate", artifact, "--gate", "golden", "--again", "--gguf", missing, "--json")
    assert outcome.code == 6
    assert (
        outcome.json["error"] == f"{missing}: no such file; give the GGUF that was converted with --gguf PATH"
    )
