"""Texts are compared token by token in all pairs, and figures are what arithmetic says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from drafting import SourceOf, oracle_source
from toy import ToyVerifier, everything, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import PassPlan, RowKind
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.system.machine import Surroundings
from anespec.validate.bench.energy import NoEnergyError
from anespec.validate.bench.figures import figures_of
from anespec.validate.bench.measure import (
    PAYING,
    PLAIN,
    BenchRun,
    Case,
    Measurement,
    Variant,
    Way,
    equal_costs,
    first_difference,
    measure,
    most_drafts,
    usual_drafts,
)
from anespec.validate.bench.options import PromptClass
from anespec.validate.bench.prompts import BenchPrompt
from anespec.validate.bench.report import BenchReport
from anespec.validate.bench.sentences import energy_sentence
from anespec.validate.bench.timed_source import BoundedSource

PROMPT = BenchPrompt(PromptClass.CODE, 1, tuple(range(8)))
GREEDY = SamplingParameters()
SHAPE = toy_shape(t_max=8)
FREE = equal_costs(SHAPE.widths)


def text(length: int) -> list[int]:
    return sequential_text(SHAPE, 5, PROMPT.ids, length, GREEDY)


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


def measured(verifier: ToyVerifier, source: SourceOf, runs: int = 3) -> Measurement:
    bounded = BoundedSource(source, 3)
    proven = everything(SHAPE)
    return Measurement(
        spending=Engine(verifier, proven, bounded, costs=FREE),
        fixed=Engine(verifier, proven, bounded, costs=FREE, min_draft_len=MAX_DRAFT_LEN),
        source=bounded,
        sampling=GREEDY,
        end_ids=frozenset(),
        runs=runs,
    )


def reported(*cases: Case, drafts: tuple[int, ...] = (1, 3)) -> BenchReport:
    return BenchReport(
        model="toy",
        backend="toy",
        threads=1,
        block=4,
        drafter="oracle",
        sampling="greedy",
        runs=3,
        lengths=tuple(sorted({case.length for case in cases})),
        drafts=drafts,
        costs=FREE,
        surroundings=Surroundings("here", 2, 0.5),
        seconds=1.0,
        cases=cases,
    )


def test_a_right_drafter_is_the_same_text_in_fewer_passes() -> None:
    case = measured(ToyVerifier(SHAPE, 5), oracle_source(PROMPT.ids, text(25))).case(PROMPT, 25, (1, 3))
    report = reported(case)
    assert [*case.plain.runs[0].ids] == text(25)
    assert report.differences == ()
    assert (report.comparisons, report.compared_tokens) == (27, 27 * 25)
    assert [each.way for each in case.drafted] == [PAYING, Way(1), Way(3)]
    passes = {each.way: each.cost.decode_passes for each in case.drafted}
    # The prompt's pass gives the first token. All rows are free: drafts as they pay are 3, 6, 7 and 7.
    assert passes == {Way(1): 12, Way(3): 6, PAYING: 4}
    assert case.plain.cost.decode_passes == 24
    assert [each.acceptance for each in case.drafted] == [pytest.approx(1 / 3), 1.0, 1.0]


def test_no_run_knows_what_another_wrote() -> None:
    source = oracle_source(PROMPT.ids, text(12))
    measured(ToyVerifier(SHAPE, 5), source, runs=2).case(PROMPT, 12, (3,))
    tenants = [tenant for tenant, _ in source.opened]
    assert len(tenants) == len(set(tenants)) == 6
    assert all(prompt == PROMPT.ids for _, prompt in source.opened)


class Changing(ToyVerifier):
    """Its bits depend on drafts in the pass, from the second run with such on."""

    drafted = 0

    def salt(self, lane: int, plan: PassPlan) -> int:
        drafts = sum(row.kind is RowKind.DRAFT for row in plan.rows)
        self.drafted += drafts
        return drafts if self.drafted > 60 else 0


def test_a_verifier_that_changes_a_token_is_found_with_its_place() -> None:
    case = measured(Changing(SHAPE, 5), oracle_source(PROMPT.ids, text(25))).case(PROMPT, 25, (3,))
    report = reported(case, drafts=(3,))
    assert report.differences
    first = report.differences[0]
    assert first.prompt is PROMPT
    assert case.plain.runs[first.plain_run - 1].ids[: first.place] == tuple(text(25)[: first.place])
    assert first.expected == text(25)[first.place] != first.found
    assert f"output token {first.place} of run {first.run} is token {first.found}" in str(first)
    assert report.facts()["identical"] is False
    assert report.facts()["differences"][0]["place"] == first.place


def ran(ids: Sequence[int], passes: int, seconds: float, **counts: tuple[int, ...]) -> BenchRun:
    cost = RequestStats(8, decode_passes=passes, decoded_tokens=len(ids) - 1, decode_seconds=seconds)
    return BenchRun(tuple(ids), replace(cost, **counts))


def case_of(plain: Sequence[float], drafted: Sequence[float], ids: Sequence[int] = range(13)) -> Case:
    """A case of 12 decoded tokens, that took so many seconds; its drafts of two were right every time."""
    return Case(
        PROMPT,
        13,
        Variant(PLAIN, tuple(ran(ids, 12, each) for each in plain)),
        tuple(
            Variant(
                way,
                tuple(
                    ran(ids, 6, each, proposed_by_position=(6, 3), accepted_by_position=(6, 0))
                    for each in drafted
                ),
            )
            for way in (PAYING, Way(2))
        ),
    )


def test_figures_are_tokens_over_seconds_run_by_run() -> None:
    cases = [case_of((4, 4, 2), (1, 2, 4)), case_of((2, 4, 4), (1, 2, 2))]
    figures = figures_of(cases, Way(2))
    assert figures is not None
    assert figures.plain.values == (4, 3, 4)
    assert figures.drafted.values == (12, 6, 4)
    # Run by run: 12 / 4, 6 / 3, 4 / 4.
    assert (figures.speedup.median, figures.speedup.least, figures.speedup.most) == (2, 1, 3)
    assert (figures.tokens, figures.passes, figures.tokens_per_pass) == (24, 12, 2.0)
    assert figures.acceptance == 0.5
    assert figures.shares_by_position == (1.0, 0.0)
    (point,) = cases[0].points
    assert (point.drafts, point.acceptance, point.speedup) == (2, 0.5, 2.0)


def test_a_text_too_short_to_be_timed_has_no_figures_but_is_compared() -> None:
    short = Case(
        PROMPT,
        3,
        Variant(PLAIN, (ran((1, 2, 3), 2, 1.0),)),
        (Variant(PAYING, (ran((1, 2, 4), 2, 1.0),)), Variant(Way(3), (ran((1, 2), 1, 0.0),))),
    )
    assert figures_of([short], Way(3)) is None
    assert short.points == ()
    report = reported(short, drafts=(3,))
    assert [(d.way, d.place, d.expected, d.found) for d in report.differences] == [
        (PAYING, 2, 3, 4),
        (Way(3), 2, 3, None),
    ]
    assert "is its end, without speculation (run 1) token 3" in str(report.differences[1])
    assert report.facts()["overall"] is None


def test_energy_is_that_of_the_tokens_after_the_first() -> None:
    measurement = measured(ToyVerifier(SHAPE, 5), oracle_source(PROMPT.ids, text(13)), runs=2)
    measurement.meter = Steady()
    report = reported(measurement.case(PROMPT, 13, (3,)), drafts=(3,))
    figures = report.figures(way=Way(3))
    assert figures is None, "with three drafts a pass the text is too short to be timed"
    longer = measured(ToyVerifier(SHAPE, 5), oracle_source(PROMPT.ids, text(41)), runs=2)
    longer.meter = Steady()
    report = reported(longer.case(PROMPT, 41, (3,)), drafts=(3,))
    figures = report.figures(way=Way(3))
    # A reading at the first token and one at the end: one joule for the 40 tokens after the first.
    assert figures is not None and figures.plain_joules is not None
    assert figures.plain_joules.values == (1 / 40, 1 / 40)
    facts = report.facts()["drafts"]["3"]["joules_per_token"]
    assert facts["without"] == [0.025, 0.025] and len(facts["with"]) == 2
    assert "A decoded token takes 0.025 J with drafts as they pay and 0.025 J without" in energy_sentence(
        replace(report, energy="steady")
    )


def test_a_meter_that_ends_leaves_the_figures_without_energy() -> None:
    measurement = measured(ToyVerifier(SHAPE, 5), oracle_source(PROMPT.ids, text(41)), runs=1)
    measurement.meter = Steady(readings=5)
    report = reported(measurement.case(PROMPT, 41, (3,)), drafts=(3,))
    figures = report.figures()
    assert figures is not None and figures.drafted_joules is None
    assert report.facts()["overall"]["joules_per_token"] is None
    assert energy_sentence(replace(report, energy="there is no meter")) == "There is no meter."


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [((), (), None), ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((2,), (), 0)],
)
def test_the_first_difference(one: tuple[int, ...], other: tuple[int, ...], place: int | None) -> None:
    assert first_difference(one, other) == place


@pytest.mark.parametrize(
    ("block", "widths", "drafts"),
    [
        (4, (4,), (1, 2, 3)),
        (4, (1, 2, 4, 8, 16, 32, 64), (1, 2, 3, 7, 15)),
        (8, (8, 16), (1, 2, 3, 4, 5, 6, 7, 15)),
        (3, (3, 4, 8), (1, 2, 5)),
        (1, (1, 2), (1,)),
        (1, (1,), ()),
    ],
)
def test_numbers_of_drafts_worth_trying(block: int, widths: tuple[int, ...], drafts: tuple[int, ...]) -> None:
    assert usual_drafts(block, most_drafts(widths)) == drafts


def test_all_prompts_are_run_at_all_lengths_and_progress_is_told() -> None:
    told: list[tuple[str, float]] = []
    measurement = measured(ToyVerifier(SHAPE, 5), oracle_source(PROMPT.ids, text(25)), runs=1)
    cases = measure(measurement, [PROMPT], (5, 9), (3,), lambda note, share: told.append((note, share)))
    assert [(case.length, len(case.plain.runs[0].ids)) for case in cases] == [(5, 5), (9, 9)]
    assert told == [("code 1, 5 tokens", 0.0), ("code 1, 9 tokens", 0.5)]
