"""Commands that run a model remember what was asked, and no fault of the memory is one of theirs."""

from pathlib import Path

import pytest
from commands import CommandResult, run

from anespec.draft_memory import memory_folder


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def generate(artifact: Path, memory: Path | str, *options: object) -> CommandResult:
    fixed = ("-p", "The little", "-n", 60, "--ignore-eos", "--drafter", "mix", "--threads", 1, "--json")
    outcome = run("generate", artifact, *fixed, "--draft-memory", memory, *options)
    assert outcome.code == 0, outcome.err
    return outcome


def passes(outcome: CommandResult) -> int:
    return int(outcome.json["passes"])


def test_the_second_run_knows_what_the_first_has_said(trained: Path, memory: Path) -> None:
    first, second = generate(trained, memory), generate(trained, memory)
    assert second.json["output_ids"] == first.json["output_ids"]
    assert passes(second) < passes(first)
    (kept,) = run("memory", "show", "--json", "--draft-memory", memory).json["memories"]
    assert (kept["owner"], kept["requests"], len(kept["models"])) == ("", 2, 1)


def test_none_keeps_nothing_on_disk(trained: Path, memory: Path, tmp_path: Path) -> None:
    generate(trained, "none")
    assert list(tmp_path.iterdir()) == []


def test_it_is_kept_in_the_users_cache_unless_said_otherwise(trained: Path) -> None:
    before = run("memory", "show", "--json").json
    assert before["folder"] == str(memory_folder())
    asked = ("-p", "The little", "-n", 4, "--ignore-eos", "--drafter", "mix", "--threads", 1)
    assert run("generate", trained, *asked).code == 0
    after = run("memory", "show", "--json").json["memories"]
    assert sum(each["requests"] for each in after) > sum(each["requests"] for each in before["memories"])


def test_a_memory_that_cannot_be_costs_no_answer(trained: Path, memory: Path) -> None:
    right = generate(trained, memory).json["output_ids"]
    next(memory.rglob("journal-*")).write_bytes(b"nonsense")
    assert generate(trained, memory).json["output_ids"] == right
    (memory / "file").write_text("no folder")
    outcome = generate(trained, memory / "file")
    assert outcome.json["output_ids"] == right
    assert outcome.err.count("cannot be used (File exists); what drafting learns is kept in memory") == 1
