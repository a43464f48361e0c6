"""The page of a run of the bench is complete, self-contained and escaped; its plots are where they should."""

import csv
import io
import re
from dataclasses import replace

import pytest
from html_page import Page
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.system.machine import Surroundings
from anespec.validate.bench.measure import PAYING, PLAIN, BenchRun, Case, Variant, Way
from anespec.validate.bench.options import PromptClass
from anespec.validate.bench.page import render_page
from anespec.validate.bench.plots import Axis, up
from anespec.validate.bench.prompts import BenchPrompt
from anespec.validate.bench.report import BenchReport
from anespec.validate.bench.runs_csv import csv_of
from anespec.validate.cost_model.forecast import Comparison

HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\x1b[2J"


def variant(way: Way, passes: int, seconds: float) -> Variant:
    right = 60 - passes
    cost = RequestStats(
        9,
        decode_passes=passes,
        decoded_tokens=60,
        decode_seconds=seconds,
        proposed_by_position=(passes, passes) if way != PLAIN else (),
        accepted_by_position=(right, right // 2) if way != PLAIN else (),
    )
    return Variant(way, (BenchRun(tuple(range(61)), cost),))


def report(model: str = "toy", classes: tuple[PromptClass, ...] = tuple(PromptClass)) -> BenchReport:
    cases = [
        Case(
            BenchPrompt(each, 1, (1, 2)),
            length,
            variant(PLAIN, 60, 6.0),
            tuple(
                variant(way, passes, passes * cost)
                for way, passes, cost in (
                    (PAYING, 30 - number, 0.12),
                    (Way(1), 45 - number, 0.1),
                    (Way(2), 40 - 2 * number, 0.11),
                )
            ),
        )
        for number, each in enumerate(classes)
        for length in (48, 61)
    ]
    return BenchReport(
        model=model,
        backend="openvino",
        threads=2,
        block=3,
        drafter="lookup",
        sampling="greedy",
        runs=1,
        lengths=(48, 61),
        drafts=(1, 2),
        costs=PassCosts.of([WidthCost(1, 0.1), WidthCost(4, 0.2)]),
        surroundings=Surroundings("Linux x86_64 toy", 2, 0.5),
        seconds=12.0,
        cases=tuple(cases),
    )


def test_the_csv_has_every_run_of_every_way() -> None:
    found = report(classes=(PromptClass.CODE,))
    lines = [*csv.DictReader(io.StringIO(csv_of(found.cases)))]
    assert len(lines) == len(found.cases) * 4
    first, drafted = lines[0], lines[2]
    assert (first["text"], first["way"], first["drafts"]) == ("code", str(PLAIN), "0")
    assert (first["tokens_per_second"], first["passes"], first["joules"]) == ("10.000", "60", "")
    assert (drafted["drafts"], drafted["run"], drafted["tokens"]) == ("1", "1", "61")
    assert float(drafted["tokens_per_second"]) == pytest.approx(60 / 4.5, abs=1e-3)
    assert [line["drafts"] for line in lines[:4]] == ["0", "", "1", "2"]


def test_the_page_compares_a_pass_with_its_prediction() -> None:
    assert "predicted for" not in Page.of(render_page(report())).text
    compared = replace(report(), comparison=Comparison("Apple M4 Max", 20.0, 30.0))
    assert "took 30.0 ms, 1.50 times the 20.0 ms predicted" in Page.of(render_page(compared)).text
    assert compared.facts()["predicted"]["ratio"] == 1.5
    assert report().facts()["predicted"] is None


def test_the_page_says_what_was_found() -> None:
    html = render_page(report())
    page = Page.of(html)
    for words in (
        "1.79 times as fast with drafts as they pay",
        "✓ same texts",
        "Linux x86_64 toy, 2 processors, load 0.5 before",
        "json, 48 tokens",
        "chat, 61 tokens",
        "break-even at an acceptance of",
        "30 comparisons of texts with speculation and without, 1830 tokens: none differs.",
    ):
        assert words in page.text, words
    assert re.search(r"speedup = -?\d\.\d{3} [+-] \d\.\d{3} x acceptance", page.text)
    assert page.tags.count("polyline") == 2 + 2 + 1 + 5 - 1
    for each in PromptClass:
        assert f'<circle class="of {each}"' in html
        assert f'<rect class="of {each}"' in html


def test_the_page_loads_nothing_and_has_no_scripts() -> None:
    page = Page.of(render_page(report(HOSTILE)))
    assert not {"script", "img", "iframe", "link", "object"} & set(page.tags)
    addresses = [value for name, value in page.attributes if name in ("src", "href", "action", "xlink:href")]
    assert all(address.startswith("#") for address in addresses)
    assert "url(" not in render_page(report())
    assert "{{ 7*7 }}" in page.text, "what a file says is text"
    assert "\x1b" not in page.text
    assert "prefers-color-scheme: dark" in render_page(report())


def test_a_difference_is_told_first_thing() -> None:
    good = report()
    case = good.cases[0]
    (run,) = case.drafted[0].runs
    changed = replace(case.drafted[0], runs=(replace(run, ids=(*run.ids[:7], 5000, *run.ids[8:])),))
    bad = replace(good, cases=(replace(case, drafted=(changed, *case.drafted[1:])), *good.cases[1:]))
    text = Page.of(render_page(bad)).text
    assert "✗ texts differ" in text
    assert "prompt json 1, 48 tokens, drafts as they pay: output token 7 of run 1 is token 5000" in text


def test_of_texts_too_short_to_be_timed_there_are_no_plots() -> None:
    one = report(classes=(PromptClass.CODE,))
    short = replace(
        one,
        cases=tuple(
            replace(
                case,
                plain=variant(PLAIN, 1, 0.1),
                drafted=tuple(variant(each.way, 1, 0.1) for each in case.drafted),
            )
            for case in one.cases
        ),
    )
    page = Page.of(render_page(short))
    assert "too few texts for a fit" in page.text
    assert "figure" not in page.tags


@given(st.lists(st.floats(-1e6, 1e6), max_size=6))
def test_an_axis_holds_its_values_in_order_between_round_ends(values: list[float]) -> None:
    axis = Axis.around(values)
    assert 2 <= len(axis.values) <= 14
    slack = 1e-9 * max(1.0, abs(axis.low), abs(axis.high))
    for value in values:
        assert axis.low - slack <= value <= axis.high + slack
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    assert (axis.place(axis.low), axis.place(axis.high)) == (0, 100)


def test_places_are_arithmetic() -> None:
    axis = Axis.around([0.0, 0.87], percent=True)
    assert (axis.low, axis.high, axis.step) == (0, pytest.approx(1.0), pytest.approx(0.2))
    assert [axis.label(value) for value in axis.values] == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    assert up(axis, 0.25) == 75
    assert re.fullmatch(r"\d+", f"{axis.place(0.5):g}")
