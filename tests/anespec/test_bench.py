"""`anespec bench replay`: the figures of known traces, and one clear sentence for a trace that is none."""

import json
from pathlib import Path

import pytest
from commands import run

from anespec.embedded import model_path

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
SPEC_BENCH = SHARED / "replay" / "spec-bench" / "sessions.jsonl"
QWEN = SHARED / "tokenizers" / "qwen2.vocab.gguf"


def written(path: Path, *answers: str) -> Path:
    """A trace of one session per answer."""
    asked = {"role": "user", "content": "Say it."}
    lines = [
        {"category": "told", "messages": [asked, {"role": "assistant", "content": answer}]}
        for answer in answers
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_lookup_has_the_figures_of_the_design() -> None:
    if not (SPEC_BENCH.exists() and QWEN.exists()):
        pytest.skip("needs the shared folder beside the repository")
    outcome = run("bench", "replay", SPEC_BENCH, "--vocab", QWEN, "--drafter", "lookup", "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    found = {name: round(each["tokens_per_pass"], 3) for name, each in facts["categories"].items()}
    # docs/DESIGN.md, section 7.
    assert found.items() >= {
        "mt_bench": 1.538, "summarization": 1.974, "qa": 1.313, "math_reasoning": 1.678, "rag": 1.605,
    }.items()  # fmt: skip
    totals = [facts["categories"][name] for name in facts["categories"]]
    assert facts["overall"]["tokens"] == sum(each["tokens"] for each in totals) == 80288
    assert facts["overall"]["passes"] == sum(each["passes"] for each in totals) == 51274
    assert facts["overall"]["sources"]["lookup"]["accepted"] == sum(facts["overall"]["accepted_by_position"])
    assert facts["requests"] == 560
    for timed in ("proposal_us", "observe_us"):
        assert 0 < facts[timed]["median"] <= facts[timed]["p99"]
    assert facts["memory_bytes"] > 0


def test_a_replay_is_the_same_twice_and_limited(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock " * 9, "never again", "")
    counts = ("requests", "categories", "overall", "memory_bytes")
    first, second, less = (
        run("bench", "replay", trace, "--vocab", model_path(), "--json", *more).json
        for more in ((), (), ("--limit", 1))
    )
    assert [first[name] for name in counts] == [second[name] for name in counts]
    assert (first["requests"], less["requests"]) == (3, 1)
    assert less["overall"]["tokens_per_pass"] > 2
    assert list(first["categories"]) == ["told"]


def test_without_a_drafter_a_pass_gives_a_token(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock tick tock")
    facts = run("bench", "replay", trace, "--vocab", model_path(), "--drafter", "none", "--json").json
    assert facts["overall"]["tokens_per_pass"] == 1
    assert facts["overall"]["tokens"] == facts["overall"]["passes"] > 0


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock tick tock", "tick tock")
    outcome = run("bench", "replay", trace, "--vocab", model_path(), "--warm", trace)
    assert outcome.code == 0
    assert "tokens per pass" in outcome.out
    assert "a proposal" in outcome.out
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        ('{"messages": []}\n{"messages": 5}\n', 7, "trace.jsonl: line 2: messages is 5: "),
        ('{"messages": []}\n', 7, "holds no answer of an assistant to replay"),
        (None, 6, "trace.jsonl: cannot be read"),
    ],
)
def test_what_is_no_trace_is_told_of_in_a_sentence(
    content: str | None, code: int, sentence: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    if content is not None:
        trace.write_text(content)
    outcome = run("bench", "replay", trace, "--vocab", model_path(), "--json")
    assert outcome.code == code
    assert outcome.ends_in_one_sentence()
    assert sentence in outcome.err
    assert outcome.json["exit_code"] == code


def test_a_vocabulary_that_is_none_is_named(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick")
    outcome = run("bench", "replay", trace, "--vocab", trace)
    assert outcome.code == 3
    assert outcome.ends_in_one_sentence()
