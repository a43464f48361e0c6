"""`anespec bench run --suite`: every suite on the embedded model, made small; what it refuses, it names."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from changing import Changing
from click.testing import CliRunner
from commands import run
from embedded_variants import write_renumbered
from html_page import Page

from anespec.cli.bench import opening
from anespec.cli.bench import suite as suite_verb
from anespec.cli.bench.prompts import prompts
from anespec.cli.main import cli
from anespec.embedded import model_path
from anespec.models.loading import OpenedModel, open_artifact
from anespec.system.errors import ExactnessGateError, RequestError
from anespec.validate.bench.energy import NoEnergyError
from anespec.validate.bench.options import PromptClass, TextKind
from anespec.validate.bench.suites.schema import Suite, read_suite, suite_names

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


def small(name: str, folder: Path) -> Path:
    """A suite of the package with short prompts and answers, and few numbers of drafts."""
    text = run("bench", "suites", name).out
    for pattern, new in (
        (r"tokens = \[[\d, ]+\]", "tokens = [40, 60]"),
        (r"\ntokens = \d+", "\ntokens = 48"),
        (r"turns = \d", "turns = 2"),
        (r"output_tokens = \d+", "output_tokens = 16"),
        (r"drafts = \[2, 3[\d, ]+\]", "drafts = [2, 8]"),
        (r"prompts = 4", "prompts = 2"),
        (r"runs = \d", "runs = 1"),
    ):
        text = re.sub(pattern, new, text)
    (path := folder / f"{name}.toml").write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pld", "ngram", "blocks"])
def test_a_suite_ends_in_its_tables_and_its_page(name: str, trained: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = run("bench", "run", trained, "--suite", small(name, tmp_path), "-o", page)
    assert shown.code == 0, shown.err
    assert "none differs" in shown.out
    assert max(len(line) for line in shown.out.splitlines() if line.startswith(" ")) <= 80
    titles = {
        "pld": ("json_rag, 40 tokens", "The same text", "Right drafts by their position in the draft"),
        "ngram": ("Speedup by the number of drafts (k), long", "by turn, short", "Use of the table's"),
        "blocks": ("Prefill, tokens per second", "First pass of a width (s)", "again, in this process"),
    }[name]
    text = Page.of(page.read_text()).text
    for title in titles:
        assert title in shown.out
        assert title in text


@pytest.mark.slow
def test_a_second_model_is_compared_cold_and_warm_and_all_is_in_the_json(
    trained: Path, tmp_path: Path
) -> None:
    given = ("bench", "run", trained, "--suite", small("ngram", tmp_path), "--runs", 2, "--json")
    outcome = run(*given, "--second-model", trained)
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    assert (facts["identical"], facts["runs"], facts["title"]) == (True, 2, "N-grams while editing")
    assert set(facts["sections"]) == {"short", "long"}
    names = [row["name"] for row in facts["sections"]["short"]]
    assert names == ["simple", "simple", "mod", "mod", "auto"]
    second = facts["second_model"]
    assert [each["way"] for each in second["cases"][0]["with"]] == [
        "mod, cold, 8 drafts a pass", "mod, warm, 8 drafts a pass",
    ]  # fmt: skip
    accepted = [
        sum(sum(case["with"][way]["accepted_by_position"]) for case in second["cases"]) for way in (0, 1)
    ]
    assert accepted[0] < accepted[1], "the warm table has seen these very texts"
    assert all(each["filled"] > 0 for each in facts["tables"])
    assert any("draft model" in note for note in facts["notes"])
    assert all(case["without"]["prefill_seconds"][0] > 0 for case in facts["cases"])


@pytest.mark.slow
def test_a_second_model_of_another_vocabulary_drafts_where_it_is_translated(
    trained: Path, tmp_path: Path
) -> None:
    """The second model is the first one with other ids: translated, most of its guesses are right."""
    draft, page = write_renumbered(tmp_path / "renumbered.gguf"), tmp_path / "page.html"
    (suite := small("uag", tmp_path)).write_text(
        suite.read_text().replace("prompts = 2", "prompts = 1").replace("[40, 60]", "[40]")
    )
    outcome = run("bench", "run", trained, "--suite", suite, "--draft", draft, "-o", page, "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    assert facts["identical"] is True
    kinds = ("encyclopaedia", "instructions", "questions")
    assert list(facts["sections"]) == [f"{kind}, 40 tokens" for kind in kinds]
    rows = [row for rows in facts["sections"].values() for row in rows if row["figures"] is not None]
    right = {
        name: sum(sum(row["figures"]["accepted_by_position"]) for row in rows if row["name"] == name)
        for name in ("none", "naive", "context")
    }
    assert right["none"] < min(right["naive"], right["context"])
    assert [line["drafts"] for line in facts["fits"]["lines"]] == [2, 4, 6]
    assert facts["fits"]["cost"]["r_squared"] <= 1
    text = Page.of(page.read_text()).text
    for words in ("Speedup against acceptance, by ordinary least squares", "R^2 = ", "context, k 6"):
        assert words in text


@pytest.mark.slow
def test_a_token_that_a_draft_changed_fails_the_suite_and_is_named(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("bench", "run", trained, "--suite", small("pld", tmp_path))

    def changing(*given: Any) -> OpenedModel:
        opened = open_artifact(*given)
        return replace(opened, verifier=Changing(opened.verifier, drafts=2))

    monkeypatch.setattr(opening, "open_artifact", changing)
    command = ["bench", "run", str(trained), "--suite", str(small("pld", tmp_path)), "--json"]
    outcome = CliRunner().invoke(cli, command)
    error = outcome.exception
    assert isinstance(error, ExactnessGateError)
    assert error.exit_code == 13
    place = (
        r"prompt \w+, \d+ tokens 1, 16 tokens, n_min \d, 2 drafts a pass: output token \d+ of run 1 is token"
    )
    assert re.search(place, str(error))
    assert error.facts["identical"] is False


class Steady:
    """A meter that shows ten joules more at every reading."""

    name = "a steady meter"
    shown = 0.0
    closed = 0

    def joules(self) -> float:
        self.shown += 10
        return self.shown

    def close(self) -> None:
        self.closed += 1


@pytest.mark.slow
def test_energy_is_shown_where_there_is_a_meter(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Steady()
    monkeypatch.setattr("anespec.validate.bench.energy.open_meter", lambda asks: meter)
    command = ["bench", "run", str(trained), "--runs", "1", "--classes", "json", "--lengths", "24"]
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(cli, [*command, "-o", str(page)]).output
    assert re.search(
        r"A decoded token takes 0\.\d+ J with drafts, as they pay and 0\.435 J without",
        " ".join(shown.split()),
    )
    assert "(a steady meter)" in shown
    assert meter.closed == 1
    assert "a steady meter" in Page.of(page.read_text()).text
    facts = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert facts["energy"] == "a steady meter"
    assert facts["overall"][0]["figures"]["joules_per_token"]["without"] == [pytest.approx(10 / 23, abs=1e-4)]
    suite = ["bench", "run", str(trained), "--suite", str(small("pld", tmp_path))]
    assert "joules" in CliRunner().invoke(cli, suite).output

    def refuse(asks: bool) -> None:
        raise NoEnergyError("there is no meter here, so buy one")

    monkeypatch.setattr("anespec.validate.bench.energy.open_meter", refuse)
    assert "There is no meter here, so buy one." in CliRunner().invoke(cli, suite).output
    for words in (suite, command):
        refused = CliRunner().invoke(cli, [*words, "--energy"]).exception
        assert isinstance(refused, RequestError)
        assert str(refused) == "--energy: there is no meter here, so buy one"


@pytest.mark.fast_only("options0-7-there is no suite 'pdl'")
@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--suite", "pdl"), 7, "there is no suite 'pdl'"),
        (("--suite", "none.toml"), 8, "none.toml: cannot be read"),
        (("--suite", "pld", "--drafts", "2"), 2, "--drafts is a matter of the suite; change it in a copy"),
        (("--suite", "pld", "--drafter", "mix"), 2, "`anespec bench suites pld` prints"),
        (("--second-model", "."), 2, "--second-model has no use in the suite standard"),
        (("--suite", "pld", "--second-model", "."), 2, "--second-model has no use in the suite pld"),
        (("--suite", "pld", "--suite", "uag"), 2, "the suite uag needs a second model that drafts"),
        (("--suite", "uag"), 2, "the suite uag needs a second model that drafts; name it with --draft DIR"),
        (("--suite", "uag", "--translate", "naive"), 2, "--translate is a matter of the suite"),
        (("--suite", "pld"), 7, "nothing of this suite can run here: json_rag, 600 tokens is left out"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_sentence(
    options: tuple[str, ...], code: int, sentence: str, trained: Path
) -> None:
    outcome = run("bench", "run", trained, *options)
    assert outcome.code == code
    assert sentence in " ".join(outcome.err.split())


@pytest.mark.slow
def test_several_suites_have_a_page_each_and_one_json(trained: Path, tmp_path: Path) -> None:
    suites = [each for name in ("pld", "blocks") for each in ("--suite", small(name, tmp_path))]
    found = run("bench", "run", trained, *suites, "--quick", "-o", tmp_path / "pages", "--json")
    assert found.code == 0, found.err
    assert [each["identical"] for each in found.json["suites"]] == [True, True]
    assert [each["runs"] for each in found.json["suites"]] == [1, 1]
    pages = {path.name: Page.of(path.read_text()).text for path in (tmp_path / "pages").iterdir()}
    assert "Prompt lookup" in pages["pld.html"]
    assert "Passes of one row and of a block" in pages["blocks.html"]


@pytest.mark.parametrize("name", suite_names())
def test_a_quick_suite_is_the_same_experiment_with_less_of_each(name: str) -> None:
    whole = read_suite(name)
    quick = whole.quick()
    assert (quick.runs, quick.title, quick.views) == (1, whole.title, whole.views)
    assert [(each.kind, each.tokens, each.prompts) for each in quick.texts] == [
        (each.kind, (min(each.tokens),), 1) for each in whole.texts
    ]
    for way, before in zip(quick.ways, whole.ways, strict=True):
        assert {*way.drafts} <= {*before.drafts} and len(way.drafts) <= 2
        assert way.drafts[:1] == before.drafts[:1] and way.drafts[-1:] == before.drafts[-1:]
    assert quick.warm == whole.warm


def test_a_quick_suite_keeps_what_its_warm_memory_is_measured_with() -> None:
    ways = ({"name": "mod", "drafts": [2, 5, 8]},)
    given = {"title": "t", "about": "a", "output_tokens": 8, "views": ["speed"], "ways": ways}
    given |= {"conversations": [{"name": "c", "tokens": 9, "turns": 2}], "warm": {"way": "mod", "drafts": 5}}
    assert Suite(**given).quick().ways[0].drafts == (2, 5, 8)


@pytest.mark.slow
def test_a_second_model_of_another_vocabulary_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other:
        vocabulary_hash = "another"

    monkeypatch.setattr(suite_verb, "read_tokenizer", lambda path: Other())
    command = ["bench", "run", str(trained), "--suite", str(small("ngram", tmp_path))]
    outcome = CliRunner().invoke(cli, [*command, "--second-model", str(trained)])
    assert "has another vocabulary than" in str(outcome.exception)


def test_suites_are_listed_and_printed() -> None:
    listed = run("bench", "suites").out
    assert [line.split()[0] for line in listed.splitlines()] == [*suite_names()]
    assert 'kind = "json_rag"' in run("bench", "suites", "pld").out
    assert run("bench", "suites", "pdl").code == 7


def test_a_prompt_is_written_with_its_tokens() -> None:
    given = ("bench", "prompts", "json_rag", "--vocab", model_path(), "--tokens", 120)
    facts = run(*given, "--json").json
    assert len(facts["ids"]) == facts["tokens"] == 120
    text = run(*given).out
    assert "These records were found" in text
    assert text.strip() in f"{facts['text'].strip()}"
    assert run(*given, "--seed", 2).out != text
    assert run("bench", "prompts", "poem", "--vocab", model_path(), "--tokens", 9).code == 2
    assert "give --tokens N" in run("bench", "prompts", "code", "--vocab", model_path()).err
    assert "either a KIND" in run("bench", "prompts", "--vocab", model_path()).err
    (kinds,) = (each.type for each in prompts.params if each.name == "kind")
    assert isinstance(kinds, click.Choice)
    assert tuple(TextKind) == tuple(kinds.choices)


def test_a_suite_s_prompts_are_those_that_it_runs() -> None:
    found = run("bench", "prompts", "--suite", "pld", "--vocab", model_path(), "--json").json
    assert [(each["kind"], each["tokens"], len(each["ids"])) for each in found["prompts"]] == [
        (kind, tokens, tokens) for kind in ("json_rag", "passage", "code") for tokens in (600, 800)
    ]
    samples = run("bench", "prompts", "--suite", "standard", "--vocab", model_path(), "--number", 2, "--json")
    assert [each["kind"] for each in samples.json["prompts"]] == [*PromptClass]
    assert all(len(each["ids"]) == each["tokens"] for each in samples.json["prompts"])
    alone = ("bench", "prompts", "passage", "--vocab", model_path(), "--tokens", 800, "--json")
    assert run(*alone).json == found["prompts"][3]
    shown = run(
        "bench", "prompts", "--suite", "uag", "--vocab", model_path(), "--tokens", 50, "--number", 2
    ).out
    assert [line for line in shown.splitlines() if line.startswith("--- ")] == [
        f"--- {kind}, 50 tokens, 2" for kind in ("encyclopaedia", "instructions", "questions")
    ]


def test_a_mistake_in_a_way_s_options_names_the_file_and_the_way(trained: Path, tmp_path: Path) -> None:
    text = run("bench", "suites", "pld").out
    for old, new in (
        ("lookup_max = 4", "lookup_max = -1"),
        ('drafter = "lookup"', 'datastore = "a\\u0000b"'),
    ):
        (path := tmp_path / "mine.toml").write_text(text.replace(old, new))
        outcome = run("bench", "run", trained, "--suite", path)
        assert outcome.code == 7 and outcome.ends_in_one_sentence()
        assert "mine.toml: the way 'n_min 2': " in " ".join(outcome.err.split())
