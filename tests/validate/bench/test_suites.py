"""Suites on a toy verifier: texts are compared, positions counted, tables warmed, what is left out named."""

import re
from dataclasses import replace

import numpy as np
import pytest
from html_page import Page
from suite_bench import SHAPE, Bench, quiet, suite_of, tables_of
from toy import ToyVerifier, everything

from anespec.runtime.drafters.mod import ModSettings
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import PassPlan, RowKind
from anespec.validate.bench.measure import BenchRun, Case, Variant, Way
from anespec.validate.bench.prompts import BenchPrompt
from anespec.validate.bench.suites.experiment import Measured, whole_texts
from anespec.validate.bench.suites.page import render_suite_page
from anespec.validate.bench.suites.report import SecondModel
from anespec.validate.bench.suites.schema import read_suite
from anespec.validate.bench.suites.table_size import SMALLEST, smallest_table
from anespec.validate.bench.suites.views import show
from anespec.validate.bench.traces import ReplayRequest


def test_every_prompt_is_written_in_every_way_and_all_nine_texts_are_compared() -> None:
    bench = Bench(suite_of())
    report = bench.report()
    assert [str(case.prompt) for case in report.cases] == ["code, 60 tokens 1", "code, 90 tokens 1"]
    assert [len(case.prompt.ids) for case in report.cases] == [60, 90]
    assert report.ways == (Way(1, name="known"), Way(3, name="known"))
    assert report.differences == ()
    # Three runs without drafts against three of each other way.
    assert report.comparisons == 2 * (2 * 3) * 3
    parity = tables_of(report)["The same text"]
    assert parity.rows[0] == ("code, 60 tokens", "1", "9", "20", "all equal")
    # The prompt's last pass has free rows, so one or three drafts run in it, and 18 or 16 tokens are left.
    assert [each.cost.decode_passes for each in report.cases[0].drafted] == [9, 4]
    tenants = [tenant for source in bench.opened for tenant, _ in source.opened]
    assert len(tenants) == len(set(tenants)) == 2 * (1 + 2 * 3), "no run knows what another wrote"
    assert not [fault for source in bench.opened for fault in source.faults]


class Changing(ToyVerifier):
    """Its bits depend on drafts in the pass, once it has run 80 passes with three of them."""

    passes = 0

    def salt(self, lane: int, plan: PassPlan) -> int:
        drafts = sum(row.kind is RowKind.DRAFT for row in plan.rows)
        self.passes += drafts == 3
        return drafts if self.passes > 80 and drafts == 3 else 0


def test_a_verifier_that_changes_a_token_is_found_with_way_and_place() -> None:
    report = Bench(suite_of(), Changing(SHAPE, 5)).report()
    assert report.differences
    first = report.differences[0]
    assert first.way == Way(3, name="known")
    sentence = f"known, 3 drafts a pass: output token {first.place} of run {first.run} is token {first.found}"
    assert sentence in str(first)
    facts = report.facts()
    assert facts["identical"] is False
    assert facts["differences"][0]["way"] == "known, 3 drafts a pass"
    parity = tables_of(report)["The same text"].rows
    assert any(row[-1].endswith("differ") for row in parity)
    page = Page.of(render_suite_page(report)).text
    assert "✗ texts differ" in page and sentence in page


def counted(
    way: Way, tries: tuple[int, ...], right: tuple[int, ...], passes: int, seconds: float = 1.0
) -> Variant:
    cost = RequestStats(
        9,
        decode_passes=passes,
        decoded_tokens=passes + sum(right),
        prefill_seconds=0.5,
        decode_seconds=seconds,
        proposed_by_position=tries,
        accepted_by_position=right,
    )
    return Variant(way, (BenchRun(tuple(range(20)), cost),))


def test_acceptance_by_position_is_what_the_counts_say() -> None:
    """Drafts of 10 passes: 8 of one token or more, 4 of them right; 6 of two or more, 3 right; 2 of 3, 0."""
    way, plain = Way(3, name="known"), Way(0, name="without drafts")
    case = Case(
        BenchPrompt("code", 1, (1,), "code, 60 tokens"),
        20,
        counted(plain, (), (), 17),
        (counted(way, (8, 6, 2), (4, 3, 0), 10),),
    )
    report = Bench(suite_of(views=["speed", "positions"])).report(measured=Measured((case,)), ways=(way,))
    tables = tables_of(report)
    positions = tables["Right drafts by their position in the draft"]
    assert positions.columns == ("text", "way", "1", "2", "3")
    assert positions.rows == (("code, 60 tokens", "known, k 3", "50%", "50%", "0%"),)
    # 7 of 16 drafts that ran were right, and 17 tokens took 10 passes.
    assert tables["code, 60 tokens"].rows[1] == ("known, k 3", "17.0", "1.00 (1.00-1.00)", "1.70", "44%")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (
            0.8,
            "fastest way over all texts is known, k 3, 1.25 times as fast as without drafts (runs: 1.25 to",
        ),
        (1.25, "No way pays on these texts here; the best, known, k 3, is 0.80 times as fast"),
    ],
)
def test_the_verdict_and_the_scoreboard_are_what_the_times_say(seconds: float, said: str) -> None:
    """17 tokens in 10 passes are 1.70 a pass: the ceiling. They take 0.8 or 1.25 of the plain seconds."""
    way, plain = Way(3, name="known"), Way(0, name="without drafts")
    case = Case(
        BenchPrompt("code", 1, (1,), "code, 60 tokens"),
        20,
        counted(plain, (), (), 17),
        (counted(way, (8, 6, 2), (4, 3, 0), 10, seconds),),
    )
    suite = suite_of(
        ways=[{"name": "known", "drafts": [3], "options": {"drafter": "lookup", "lookup_min": 2}}],
        views=["scoreboard", "waits", "verdict"],
    )
    report = Bench(suite).report(measured=Measured((case,)), ways=(way,))
    tables = tables_of(report)
    near = {0.8: "1.25 (74% of 1.70)", 1.25: "0.80 (47% of 1.70)"}[seconds]
    assert tables["Speedup, and the share of its ceiling"].rows == (("code, 60 tokens", near),)
    first = ("code, 60 tokens", *["0.50 (0.50-0.50)"] * 2)
    assert tables["Seconds to the first token (range)"].rows == (first,)
    whole = tables["Seconds of a whole request (range)"].rows[0]
    assert whole[1:] == ("1.50 (1.50-1.50)", f"{0.5 + seconds:.2f} ({0.5 + seconds:.2f}-{0.5 + seconds:.2f})")
    *_, verdict = show(report)
    assert said in verdict.sentences[0]
    flags = "--drafter lookup --lookup-min 2" if seconds < 1 else "--drafter none"
    assert verdict.sentences[0].endswith(f"use {flags}.")


def test_the_verdict_on_widths_says_from_which_drafts_on_they_pay() -> None:
    """A pass of four rows takes 1.5 times as long as one of one row, so half a right draft pays for it."""
    narrow, plain = Way(0, name="T = 1", other_bits=True), Way(0, name="T = 4")
    suite = suite_of(
        baseline={"name": "T = 4", "width": 4},
        ways=[
            {"name": "T = 1", "drafts": [0], "width": 1},
            {"name": "perfect", "drafts": [3], "width": 4, "perfect": True},
        ],
        views=["verdict"],
    )
    case = Case(
        BenchPrompt("passage", 1, (1,), "passage, 60 tokens"),
        20,
        counted(plain, (), (), 17, 1.5),
        (counted(narrow, (), (), 17), counted(Way(3, name="perfect"), (5,), (5,), 12, 1.2)),
    )
    found = Bench(suite).report(
        measured=Measured((case,)), baseline=plain, ways=(narrow, Way(3, name="perfect"))
    )
    (sentence,) = show(found)[0].sentences
    assert "a pass of T = 4 takes 1.50 times as long as one of T = 1" in f"a{sentence[1:]}"
    assert "drafts pay from 0.50 right ones a pass on, of 3 drafts" in sentence


def test_wrong_drafts_are_counted_where_they_stood() -> None:
    """Every third proposed token is wrong: with three drafts a pass it is the third, when all of them run."""
    report = Bench(suite_of(ways=[{"name": "known", "drafts": [3]}]), wrong_each=3).report()
    (variant,) = report.cases[0].drafted
    tried, right = variant.cost.proposed_by_position, variant.cost.accepted_by_position
    assert right[:2] == tried[:2] and right[2] == 0 < tried[2]


def test_perfect_drafts_are_the_ceiling_and_passes_have_their_width() -> None:
    verifier = ToyVerifier(SHAPE, 5)
    suite = suite_of(
        baseline={"name": "T = 4", "width": 4},
        ways=[
            {"name": "T = 1", "drafts": [0], "width": 1},
            {"name": "perfect", "drafts": [3], "width": 4, "perfect": True},
        ],
    )
    narrow = replace(everything(SHAPE), widths=(4, 8, 16))
    bench = Bench(suite, verifier, narrow)
    one, perfect = bench.measured.cases[0].drafted
    assert one.way.other_bits and not perfect.way.other_bits
    assert [each.cost.decode_passes for each in (one, perfect)] == [19, 5]
    assert perfect.cost.accepted == perfect.cost.proposed
    assert one.cost.prompt_passes == 60
    assert {plan.width for plan in verifier.passes_run} == {1, 4}
    report = bench.report()
    assert report.comparisons == 2 * 3 * 3, "passes of one row are not proven, so not compared"
    assert "passes of 1 row are not proven to give the same text here" in report.notes[0]
    lengths = tables_of(report)["Decoding, tokens per second"]
    assert lengths.columns == ("prompt", "T = 4", "T = 1", "perfect\nk 3")
    sentences = [sentence for view in show(report) for sentence in view.sentences]
    ceiling = (
        r"With 3 perfect drafts a pass decoding is \d+\.\d\d times as fast as T = 4 and \d+\.\d\d times "
    )
    assert any(re.match(ceiling + "as fast as T = 1, the median", each) for each in sentences)
    assert not any("No cold start" in each for each in sentences)
    none = show(replace(report, starts=report.starts[1:]))
    assert any("No cold start is recorded on toy" in each for view in none for each in view.sentences)
    assert tables_of(report)["Starting"].rows == (("cold", "20.00"), ("warm", "2.00"))
    proven = Bench(suite).report()
    assert proven.comparisons == 2 * 2 * 3 * 3 and not proven.differences


TALK = {
    "texts": [],
    "conversations": [{"name": "short", "tokens": 50, "turns": 3}],
    "ways": [
        {"name": "mod", "drafts": [2, 4], "options": {"drafter": "mod"}},
        {"name": "lookup", "as_they_pay": True, "options": {"drafter": "lookup"}},
    ],
}


def test_the_turns_of_a_conversation_follow_one_another_in_every_way() -> None:
    bench = Bench(suite_of(**TALK))
    report = bench.report()
    first, second, third = (case.prompt for case in report.cases)
    assert [each.group for each in (first, second, third)] == [f"short, turn {turn}" for turn in (1, 2, 3)]
    assert second.ids[: len(first.ids) + 20] == (*first.ids, *bench.arms.known[first.ids])
    assert third.ids[: len(second.ids)] == second.ids
    assert not report.differences
    # What an earlier turn left in the state is used again.
    reused = [case.drafted[0].cost.reused_tokens for case in report.cases]
    assert reused[0] == 0 and 0 < reused[1] < reused[2]
    uses = [use for use in report.measured.tables if use.way.most == 4]
    assert [str(use.prompt.group) for use in uses] == ["short, turn 1", "short, turn 2", "short, turn 3"]
    assert 0 < uses[0].facts.filled < uses[2].facts.filled
    assert uses[0].facts.entries == 1 << 12, "one tenant's table, not those of all runs"
    tables = tables_of(report)
    turns = tables["Speedup (tokens per pass) by turn, short"]
    assert turns.columns[:3] == ("turn", "prompt", "tokens/s\nwithout")
    assert [row[:2] for row in turns.rows] == [("1", "50"), *((str(i), turns.rows[i - 1][1]) for i in (2, 3))]
    assert len(tables["Use of the table's 4,096 entries after each text"].rows) == 3
    (size,) = report.measured.sizes
    assert (size.way.most, size.entries, size.whole) == (4, 1024, 4096)
    # The engine drafts already in a prompt's last pass, which a replay counts as a pass of its own.
    passes = sum(
        each.cost.decode_passes for case in report.cases for each in case.drafted if each.way.most == 4
    )
    assert passes <= size.passes <= passes + 3
    assert tables["Speedup by the number of drafts (k), short"].columns == ("k", "mod")


def test_a_warm_table_drafts_what_a_cold_one_cannot() -> None:
    """The texts of a first model are learnt before each run; here the second one is the same."""
    bench = Bench(suite_of(**TALK, warm={"way": "mod", "drafts": 4}, views=["warm"]))
    texts = whole_texts(bench.scripts, bench.arms.known)
    assert texts[0][-20:] == bench.arms.known[bench.scripts[0].turns[-1].ids]
    arm = next(arm for arm in bench.every if arm.way.most == 4)
    both = [
        replace(arm, way=replace(arm.way, name=f"mod, {name}"), taught=taught)
        for name, taught in (("cold", ()), ("warm", texts))
    ]
    measured = bench.experiment.run(bench.scripts, both, quiet)
    cold, warm = (sum(case.drafted[i].cost.accepted for case in measured.cases) for i in (0, 1))
    assert warm > cold
    report = bench.report(second=SecondModel("other", measured))
    assert not report.differences
    assert report.comparisons == bench.report().comparisons + 3 * (2 * 3) * 3
    (table,) = tables_of(report).values()
    assert table.title == "other, mod, cold, 4 drafts a pass: a cold table, and one warmed by toy"
    assert [row[0] for row in table.rows] == [f"short, turn {turn}" for turn in (1, 2, 3)]
    assert report.facts()["second_model"]["model"] == "other"
    (without,) = show(bench.report())
    assert "`--second-model DIR`" in without.sentences[0]


def test_what_cannot_run_is_left_out_and_named() -> None:
    suite = suite_of(
        texts=[{"kind": "code", "tokens": [60, 390]}],
        conversations=[{"name": "talk", "tokens": 300, "turns": 9}],
        baseline={"name": "T = 5", "width": 5},
        ways=[
            {"name": "known", "drafts": [3]},
            {"name": "wide", "drafts": [3], "width": 3},
            {"name": "narrow", "drafts": [3], "width": 2},
            {"name": "second", "drafts": [2], "draft_model": True},
        ],
    )
    bench = Bench(suite)
    assert [arm.way.name for arm in bench.every] == ["known"]
    assert [len(script.turns) for script in bench.scripts] == [1, 2]
    notes = "\n".join(bench.arms.notes)
    for words in (
        "T = 5 runs passes of 4 rows: this artifact has no passes of 5 rows",
        "code, 390 tokens is left out: 390 tokens and 20 of output do not fit the context of 400; convert "
        "with --context 410",
        "talk, turn 3 is left out",
        "'wide' is left out: this artifact has no passes of 3 rows",
        "'narrow': more than 1 draft fit no pass here and are left out",
        "'second' is left out: there is no second model",
    ):
        assert words in notes, words


def test_the_page_has_every_table_and_plot_and_no_foreign_markup() -> None:
    hostile = "<script>alert(1)</script>"
    report = Bench(suite_of(texts=[{"kind": "code", "tokens": [60, 70, 80, 90]}])).report(
        model=hostile, notes=("something was left out",)
    )
    html = render_suite_page(report)
    page = Page.of(html)
    for view in show(report):
        for table in view.tables:
            assert table.title in page.text
        for plot in view.plots:
            assert plot is None or plot.title in page.text
    assert "Something was left out." in page.text
    assert "There is no meter." in page.text
    assert "speedup = (1 + a k)" in page.text and "R^2 = " in page.text
    assert '<circle class="of c1"' in html and '<polyline class="curve c2"' in html
    assert not {"script", "img", "iframe", "link", "object"} & set(page.tags)
    assert hostile in page.text


@pytest.mark.parametrize("name", ["standard", "pld", "ngram", "blocks"])
def test_suites_of_the_package_end_in_their_tables(name: str) -> None:
    """Made small: short prompts, short answers, one run."""
    suite = read_suite(name)
    small = suite.with_changes(
        runs=1,
        output_tokens=(8,),
        texts=tuple(each.with_changes(tokens=(40, 50)) for each in suite.texts),
        conversations=tuple(each.with_changes(tokens=40, turns=2) for each in suite.conversations),
    )
    report = Bench(small).report()
    assert not report.differences
    views = show(report)
    assert len(views) == len(suite.views)
    assert all(view.tables or view.sentences for view in views)
    assert (name == "blocks") is any("1.62x with 800" in each for view in views for each in view.sentences)
    facts = report.facts()
    assert facts["declared"]["views"] == [str(each) for each in suite.views]
    assert {row["way"] for rows in facts["sections"].values() for row in rows} == set(map(str, report.ways))


def test_a_table_is_as_large_as_its_texts_need() -> None:
    """A text of different n-grams, said twice: a small table forgets its beginning before it comes again."""
    once = tuple(int(token) for token in np.random.default_rng(3).integers(0, 500, 1000))
    way, settings = Way(4, name="mod"), ModSettings(3, 1 << 15)
    found = smallest_table(way, settings, [[ReplayRequest("code", once, once)]])
    assert SMALLEST < found.entries <= 1 << 15
    assert found.passes < len(once) / 3
    short = smallest_table(way, settings, [[ReplayRequest("code", once[:50], once[:50])]])
    assert SMALLEST <= short.entries <= found.entries
