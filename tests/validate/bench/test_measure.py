"""Texts are compared token by token in all pairs, and figures are what arithmetic says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.validate.bench.figures import figures_of
from anespec.validate.bench.measure import (
    BenchRun,
    Case,
    Variant,
    Way,
    first_difference,
    most_drafts,
    usual_drafts,
)
from anespec.validate.bench.options import PromptClass
from anespec.validate.bench.prompts import BenchPrompt

PROMPT = BenchPrompt(PromptClass.CODE, 1, tuple(range(8)), "code")
PLAIN, PAYING = Way(0), Way(MAX_DRAFT_LEN, as_they_pay=True)


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
    differences = [*short.differences]
    assert [(d.way, d.place, d.expected, d.found) for d in differences] == [
        (PAYING, 2, 3, 4),
        (Way(3), 2, 3, None),
    ]
    assert "is its end, without speculation (run 1) token 3" in str(differences[1])


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
