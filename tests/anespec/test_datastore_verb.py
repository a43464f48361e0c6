"""`anespec datastore`: built of files, shown, and drafted from."""

import json
import os
from pathlib import Path

import pytest
from commands import run


def test_a_datastore_is_built_shown_and_drafted_from(gguf: Path, tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "one two three four five"},
    ]
    (tmp_path / "chats.jsonl").write_text(
        json.dumps({"category": "chat", "messages": messages}) + '\n"more"\n'
    )
    (tmp_path / "session.jsonl").write_text(json.dumps({"category": "chat", "messages": messages}) + "\n")
    (tmp_path / "notes.md").write_text("Some notes.\n")
    files = ("chats.jsonl", "notes.md")
    built = run("datastore", "build", *files, "--vocab", gguf, "-o", "mine", "--json", cwd=tmp_path)
    assert built.code == 0, built.err
    assert built.json["documents"] == 4
    assert built.json["bytes"] == (tmp_path / "mine").stat().st_size
    shown = run("datastore", "show", "mine", "--json", cwd=tmp_path)
    assert shown.json == {name: value for name, value in built.json.items() if name != "seconds"}
    told = run("datastore", "show", "mine", cwd=tmp_path).out
    assert str(built.json["documents"]) in told and "…" not in told
    drafter = ("--drafter", "datastore", "--datastore", tmp_path / "mine")
    replayed = run("bench", "replay", "session.jsonl", "--vocab", gguf, *drafter, "--json", cwd=tmp_path)
    assert replayed.json["overall"]["tokens_per_pass"] > 1.5, replayed.json


@pytest.mark.slow
def test_its_default_name_and_its_refusals_are_one_sentence_each(
    gguf: Path, artifact: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("Some notes.\n")
    first = run("datastore", "build", "a.txt", "--vocab", artifact, cwd=tmp_path)
    assert first.code == 0, first.err
    assert first.out.startswith("a.datastore: ")
    again = run("datastore", "build", "a.txt", "--vocab", gguf, cwd=tmp_path)
    assert again.code == 2 and "--force" in again.err and again.is_one_sentence()
    assert run("datastore", "build", "a.txt", "--vocab", gguf, "--force", cwd=tmp_path).code == 0
    for arguments, code, words in (
        (("build", "a.txt", "--vocab", "a.txt", "-o", "b"), 5, "no GGUF"),
        (("build", "missing.txt", "--vocab", gguf, "-o", "b"), 6, "missing.txt"),
        (("show", "a.txt"), 7, "not a datastore"),
        (("show", "missing"), 6, "missing"),
    ):
        outcome = run("datastore", *arguments, cwd=tmp_path)
        assert outcome.code == code, outcome.err
        assert words in outcome.err and outcome.ends_in_one_sentence()
    asked = run("generate", artifact, "-p", "hello", "--drafter", "datastore", "--threads", 1)
    assert asked.code == 7 and "needs --datastore FILE" in asked.err


def test_what_it_is_built_of_is_never_replaced_by_it(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some notes.\n")
    (tmp_path / "v.gguf").write_bytes(gguf.read_bytes())
    for output in ("a.txt", "v.gguf"):
        before = (tmp_path / output).read_bytes()
        outcome = run(
            "datastore", "build", "a.txt", "--vocab", "v.gguf", "-o", output, "--force", cwd=tmp_path
        )
        assert outcome.code == 2 and outcome.is_one_sentence(), outcome.err
        assert "is one of the files to read" in outcome.err
        assert (tmp_path / output).read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="no file here says that it is empty, and is not"
)
def test_a_file_that_says_it_is_empty_is_read(gguf: Path, tmp_path: Path) -> None:
    outcome = run("datastore", "build", "/proc/self/status", "--vocab", gguf, "-o", "s", cwd=tmp_path)
    assert outcome.code == 0, outcome.err


@pytest.mark.slow
def test_it_is_said_beforehand_what_will_be_read_and_what_it_takes(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some notes.\n" * 1000)
    outcome = run("datastore", "build", "a.txt", "--vocab", gguf, cwd=tmp_path)
    assert outcome.code == 0
    (said,) = (line for line in outcome.err.splitlines() if line.startswith("note: "))
    assert said.startswith("note: 1 file of 12.0 kB will be read, about ")
    assert "of disk" in said and "while it is built" in said


def test_a_file_of_nothing_but_its_size_is_refused_before_it_is_read(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some notes.\n")
    os.truncate(tmp_path / "a.txt", 3 << 40)
    outcome = run("datastore", "build", "a.txt", "--vocab", gguf, "-o", "out", cwd=tmp_path)
    assert outcome.code == 7 and outcome.ends_in_one_sentence()
    assert "a.txt: is not text" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
