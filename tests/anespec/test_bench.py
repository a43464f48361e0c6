"""`anespec bench`: the figures of known traces, and of the embedded model; one sentence for what is none."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changing import Changing
from click.testing import CliRunner
from commands import CommandResult, run
from html_page import Page

from anespec.cli.bench import opening
from anespec.cli.main import cli
from anespec.embedded import model_path
from anespec.models.loading import OpenedModel, open_artifact
from anespec.runtime.drafters import kept_code
from anespec.system.errors import ExactnessGateError, StorageError

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

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


@pytest.mark.slow
def test_lookup_has_the_figures_of_the_design() -> None:
    if not (SPEC_BENCH.exists() and QWEN.exists()):
        pytest.skip("needs shared/ beside the repository")
    outcome = run("bench", "replay", SPEC_BENCH, "--vocab", QWEN, "--drafter", "lookup", "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    found = {name: round(each["tokens_per_pass"], 3) for name, each in facts["categories"].items()}
    # The figures of docs/sources.md.
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock tick tock", "tick tock")
    outcome = run("bench", "replay", trace, "--vocab", model_path(), "--warm", trace)
    assert outcome.code == 0
    assert "tokens per pass" in outcome.out
    assert "a proposal" in outcome.out
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


@pytest.mark.fast_only("None-6-trace.jsonl: cannot be read")
@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        ('{"messages": []}\n{"messages": 5}\n', 7, "trace.jsonl: line 2: messages is 5: "),
        ('{"messages": []}\n', 7, "has no answer of an assistant to replay"),
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


@pytest.mark.slow
def test_costs_say_what_drafts_are_worth(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock " * 40)
    given = ("bench", "replay", trace, "--vocab", model_path(), "--drafter", "lookup", "--json")
    free, dear = (run(*given, "--costs", costs).json["overall"] for costs in ("1=5,8=5", "1=5,4=20,8=40"))
    assert free["speedup"] == pytest.approx(free["tokens_per_pass"], abs=1e-3)
    assert dear["speedup"] < 1.1
    assert run(*given, "--costs", "1=5,8").code == 2
    assert run(*given, "--costs", "0=5").code == 2
    assert run(*given, "--limit", 10**20).code == 2
    alone = run(*given, "--costs", "4=20")
    assert alone.code == 2
    assert "of one row" in alone.err
    shown = run(*given[:-1], "--costs", "1=5,8=6").out
    assert "speedup" in shown
    assert "drafts as they pay" in shown


@pytest.mark.slow
def test_what_learns_from_rows_is_told_that_a_trace_has_none(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock")
    given = ("bench", "replay", trace, "--vocab", model_path())
    assert "learns from the model's own predictions" in run(*given, "--drafter", "recycle").err
    assert "note:" not in run(*given, "--drafter", "lookup").err


def test_who_waits_for_the_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept_code, "is_compiled", lambda name: False)
    trace = written(tmp_path / "trace.jsonl", "tick tock")
    given = ["bench", "replay", str(trace), "--vocab", str(model_path()), "--json", "--drafter"]
    assert "compiled for this processor" in CliRunner().invoke(cli, [*given, "mod"]).stderr
    assert "compiled" not in CliRunner().invoke(cli, [*given, "lookup"]).stderr


def test_files_are_looked_at_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "anespec.cli.bench.replay.make_source", lambda *_: pytest.fail("was compiled for nothing")
    )
    os.mkfifo(tmp_path / "pipe")
    good = written(tmp_path / "good.jsonl", "one two")
    for files in ((tmp_path / "pipe",), (good, tmp_path), (good, "--warm", tmp_path / "pipe")):
        outcome = CliRunner().invoke(
            cli, [str(each) for each in ("bench", "replay", *files, "--vocab", model_path())]
        )
        assert isinstance(outcome.exception, StorageError), outcome.output


def test_a_vocabulary_that_is_none_is_named(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick")
    outcome = run("bench", "replay", trace, "--vocab", trace)
    assert outcome.code == 5
    assert "no GGUF, no artifact and no model in the cache" in outcome.err
    assert outcome.ends_in_one_sentence()


@pytest.mark.slow
def test_an_artifact_has_a_vocabulary_to_replay_in(artifact: Path, gguf: Path, tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.jsonl", "tick tock tick tock")
    given = ("bench", "replay", trace, "--drafter", "lookup", "--json", "--vocab")
    told, read = (run(*given, model).json["overall"] for model in (artifact, gguf))
    assert told == read


QUICK = ("--classes", "json,code,edit", "--lengths", "16", "--drafts", "1,3,7")


@pytest.fixture(scope="module")
def measured(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandResult, Path]:
    """What a run says as JSON, and its page; verdicts and costs are recorded from then on."""
    page = tmp_path_factory.mktemp("bench") / "bench.html"
    return run("bench", "run", trained, *QUICK, "--runs", 2, "-o", page, "--json"), page


@pytest.mark.slow
def test_run_measures_and_compares(measured: tuple[CommandResult, Path]) -> None:
    outcome, page = measured
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    assert facts["identical"] is True
    # Two texts of three kinds; 1, 3 and 7 drafts and as they pay; two runs against two.
    assert facts["comparisons"] == 6 * 4 * 2 * 2
    assert facts["differences"] == []
    assert facts["suite"] == "standard"
    assert list(facts["sections"]) == ["json", "code", "edit"]
    paying, *fixed = (row["figures"] for row in facts["overall"])
    assert [each["drafts"] for each in (paying, *fixed)] == [None, 1, 3, 7]
    assert paying["tokens_per_pass"] > 1
    assert len(paying["tokens_per_second"]["with"]) == 2
    assert {"machine", "processors", "load_before"} == set(facts["machine"])
    assert facts["fits"].keys() == {"lines", "cost"}
    assert facts["pass_costs"]["widths"]
    assert "anespec bench" in page.read_text()
    runs = page.with_suffix(".csv").read_text().splitlines()
    assert len(runs) == 1 + 6 * 5 * 2


@pytest.mark.slow
def test_run_shows_tables_that_fit_a_terminal(trained: Path, measured: tuple[CommandResult, Path]) -> None:
    outcome = run("bench", "run", trained, *QUICK, "--drafts", 2, "--runs", 1, "--temperature", "0.7")
    assert outcome.code == 0, outcome.err
    tables = [line for line in outcome.out.splitlines() if re.search(r"\d\.\d\d \(|too short", line)]
    assert len(tables) == 4 + 2
    assert max(map(len, tables)) <= 80
    assert "temperature 0.7, seed 1" in outcome.out
    assert "none differs" in outcome.out


@pytest.mark.slow
def test_run_fails_and_names_the_place_where_speculation_changes_a_token(
    trained: Path, measured: tuple[CommandResult, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*given: Any) -> OpenedModel:
        opened = open_artifact(*given)
        return replace(opened, verifier=Changing(opened.verifier, drafts=3))

    monkeypatch.setattr(opening, "open_artifact", changing)
    outcome = CliRunner().invoke(cli, ["bench", "run", str(trained), *QUICK, "--runs", "2", "--drafts", "3"])
    error = outcome.exception
    assert isinstance(error, ExactnessGateError)
    assert error.exit_code == 13
    # Which drafts pay follows from times.
    way = "drafts, (3 drafts a pass|as they pay)"
    place = rf"prompt json 1, 16 tokens, {way}: output token \d+ of run 1 is token \d+, without"
    assert re.search(place, str(error))
    assert error.facts["identical"] is False
    assert error.facts["differences"]


@pytest.mark.fast_only("options3-6-page.html: cannot be written")
@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--drafter", "none"), 7, "without a drafter there is nothing to compare"),
        (
            ("--drafts", "16"),
            7,
            "--drafts 16 is more than the 15 drafts that a pass of a sequence runs at most",
        ),
        pytest.param(("--lengths", "256"), 7, "leaves no room for a prompt", marks=pytest.mark.slow),
        (("-o", "no-such-folder/page.html"), 6, "page.html: cannot be written"),
        (("-o", "runs.csv"), 2, "-o names the page; every run is written to a .csv file beside it"),
    ],
)
def test_run_says_what_cannot_be_measured(
    options: tuple[str, ...], code: int, sentence: str, trained: Path
) -> None:
    outcome = run("bench", "run", trained, *options)
    assert outcome.code == code
    assert outcome.ends_in_one_sentence()
    assert sentence in outcome.err


def test_a_replay_writes_a_page_with_the_figures_that_it_prints(tmp_path: Path) -> None:
    trace = written(tmp_path / "<b>trace.jsonl", "tick tock " * 9, "never again")
    page = tmp_path / "page.html"
    given = ("bench", "replay", trace, "--vocab", model_path(), "--drafter", "lookup", "--json")
    facts = run(*given, "--costs", "1=28,4=40", "-o", page).json
    found = Page.of(page.read_text())
    text = " ".join(" ".join(found.texts).split())
    told = facts["categories"]["told"]
    row = f"told {told['tokens']} {told['passes']} {told['tokens_per_pass']:.3f} "
    assert re.search(rf"{row}[^a-z]*{told['speedup']:.3f}\b", text)
    assert "2 answers of <b>trace.jsonl, in the vocabulary of model; drafts as they pay" in text
    assert f"lookup {facts['overall']['sources']['lookup']['proposed']}" in text
    assert {"script", "link", "img"}.isdisjoint(found.tags) and "b" not in found.tags
    alone = run(*given[:-3], "--drafter", "none", "-o", page, "--json")
    assert alone.code == 0 and "no drafts" in " ".join(Page.of(page.read_text()).texts)
    missing = run(*given, "-o", tmp_path / "no" / "page.html")
    assert missing.is_one_sentence() and missing.code != 0
