"""The suite that runs where none is named, the options that change it, and what every suite reports."""

import csv
import io

import pytest
from html_page import Page
from suite_bench import SHAPE, Bench, suite_of, tables_of
from toy import ToyVerifier

from anespec.system.errors import RequestError
from anespec.validate.bench.energy import NoEnergyError
from anespec.validate.bench.first_use import first_passes
from anespec.validate.bench.options import BenchOptions
from anespec.validate.bench.runs_csv import csv_of
from anespec.validate.bench.suites.page import render_suite_page
from anespec.validate.bench.suites.schema import read_suite
from anespec.validate.bench.suites.views import show
from anespec.validate.cost_model.forecast import Comparison


def test_standard_runs_samples_at_every_length_as_they_pay_and_with_the_usual_drafts() -> None:
    suite = read_suite("standard").with_changes(runs=1, output_tokens=(8, 20), samples=("code", "edit"))
    report = Bench(suite).report()
    assert [str(way) for way in report.ways] == [
        "drafts, as they pay",
        *(f"drafts, {k} draft{'s' * (k > 1)} a pass" for k in (1, 2, 3, 7, 15)),
    ]
    assert [*report.sections] == [f"{kind}, {length}" for kind in ("code", "edit") for length in (8, 20)]
    assert [*report.classes] == ["code", "edit"]
    assert {(len(case.plain.runs[0].ids), case.length) for case in report.cases} == {(8, 8), (20, 20)}
    tables = tables_of(report)
    assert [row[0] for row in tables["drafts, as they pay"].rows] == [*report.sections, "all"]
    assert [row[0] for row in tables["all texts by the number of drafts"].rows][:2] == [
        "as they pay",
        "k 1",
    ]
    assert tables["Cost of a pass"].rows[0][::2] == ("1", "1.00")
    assert report.differences == ()


def test_options_replace_what_standard_says_and_no_other_suite() -> None:
    options = BenchOptions(
        classes=("code",), lengths=(7,), drafts=(2,), runs=5, temperature=0.7, seed=9, drafter="lookup"
    )
    given = read_suite("standard").given(options)
    assert (given.samples, given.output_tokens, given.runs) == (("code",), (7,), 5)
    assert given.sampling_text == "temperature 0.7, seed 9"
    (way,) = given.ways
    assert (way.drafts, way.usual, way.as_they_pay, way.options) == ((2,), False, True, {"drafter": "lookup"})
    pld = read_suite("pld")
    assert pld.given(options) == pld.with_changes(runs=5)
    with pytest.raises(RequestError, match="--drafts 16 is more than the 15 drafts"):
        read_suite("standard").given(BenchOptions(drafts=(16,)))


class Steady:
    """A meter that shows one joule more at every reading, and ends after some of them."""

    name = "steady"

    def __init__(self, readings: int = 1000) -> None:
        self.left = readings
        self.shown = 0.0

    def joules(self) -> float:
        if not self.left:
            raise NoEnergyError("it ended")
        self.left -= 1
        self.shown += 1
        return self.shown

    def close(self) -> None:
        """Nothing is held."""


def test_energy_is_that_of_the_tokens_after_the_first() -> None:
    suite = suite_of(texts=[{"kind": "code", "tokens": [60]}], output_tokens=41, runs=2)
    report = Bench(suite, meter=Steady()).report(energy="steady")
    # A reading at the first token and one at the end: one joule for the 40 tokens after the first.
    facts = report.facts()["overall"][0]["figures"]["joules_per_token"]
    assert facts["without"] == [0.025, 0.025]
    way = tables_of(report)["all texts by the number of drafts"]
    assert way.columns[-1] == "joules\na token"
    said = [each for view in show(report) for each in view.sentences]
    assert any("and 0.025 J without (steady)" in each for each in said)


def test_a_meter_that_ends_leaves_the_figures_without_energy() -> None:
    suite = suite_of(texts=[{"kind": "code", "tokens": [60]}], output_tokens=41, runs=1)
    report = Bench(suite, meter=Steady(readings=9)).report()
    assert report.facts()["overall"][-1]["figures"]["joules_per_token"] is None
    assert "There is no meter." in [each for view in show(report) for each in view.sentences]


def test_a_pass_is_compared_with_its_prediction() -> None:
    report = Bench(suite_of()).report(comparison=Comparison("Apple M4 Max", 20.0, 30.0))
    assert "took 30.0 ms, 1.50 times the 20.0 ms predicted" in Page.of(render_suite_page(report)).text
    assert report.facts()["predicted"]["ratio"] == 1.5
    assert Bench(suite_of()).report().facts()["predicted"] is None


def test_the_csv_has_every_run_of_every_way() -> None:
    found = Bench(suite_of()).report()
    lines = [*csv.DictReader(io.StringIO(csv_of(found.cases)))]
    assert len(lines) == len(found.cases) * 3 * 3
    first, drafted = lines[0], lines[3]
    assert (first["text"], first["way"], first["drafts"]) == (
        "code, 60 tokens",
        "without drafts",
        "0",
    )
    assert (first["output_tokens"], first["joules"], first["tokens_per_pass"]) == ("20", "", "1.0000")
    assert (drafted["drafts"], drafted["run"], drafted["tokens"]) == ("1", "1", "20")


def test_starts_say_what_each_width_costs_when_it_is_used_first() -> None:
    tables = tables_of(Bench(suite_of(views=["starts"])).report())
    assert tables["Starting"].rows == (("cold", "20.00"), ("warm", "2.00"))
    first = tables["First pass of a width (s)"]
    assert first.columns == ("rows", "cold", "warm")
    assert first.rows == (("1", "3.000", "-"), ("4", "2.500", "-"))
    found = first_passes(ToyVerifier(SHAPE, 5))
    assert [width for width, _ in found] == list(SHAPE.widths)
    assert all(seconds > 0 for _, seconds in found)
