"""What the exactness gate's drawn cases can find: faults of every kind that touch few rows."""

import io
from collections.abc import Mapping, Sequence
from copy import deepcopy

import pytest
from rare_faults import (
    LANES,
    LAST_LANE,
    NEIGHBOURS,
    PARTITION,
    REGIONS,
    SHAPE,
    SPANS,
    STATES,
    VOCABULARY,
    WANTED,
    WIDTHS,
    Fault,
    NumberVerifier,
)
from rich.console import Console
from slow import slow_but

from anespec.manifests.verdicts import ExactnessVerdict, Invariance, RunEnvironment
from anespec.validate.exactness.effort import Form
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.exactness.repeat_checks import recorded_pass
from anespec.validate.report import exactness_table

HERE = RunEnvironment(backend="numbers", library_version="1", machine="any", threads=1, artifact="0")
PROMPTS = [[token % VOCABULARY for token in range(first, first + 48)] for first in (3, 9, 2)]
ONE_IN = 30
"""Rows of which one was seen to differ where a library's kernels round differently."""

REQUIRED = [*LANES, *NEIGHBOURS, *PARTITION, *WANTED]
by_name: Mapping[str, object] = {"ids": lambda fault: fault.name}


def verdict_of(verifier: NumberVerifier, form: Form, seed: int = 0) -> ExactnessVerdict:
    there = {"in a copy": recorded_pass(deepcopy(verifier), PROMPTS)}
    return exactness_gate(verifier, HERE, form=form, prompts=PROMPTS, elsewhere=there, seed=seed)


def of(fault: Fault, rate: int = ONE_IN, salt: int = 0) -> NumberVerifier:
    return NumberVerifier(SHAPE, fault, rate, salt)


@pytest.mark.parametrize("form", ["quick", "full"])
def test_a_lawful_verifier_is_asked_no_more_than_it_takes(form: Form) -> None:
    verifier = NumberVerifier(SHAPE)
    verdict = verdict_of(verifier, form)
    assert all(found.proven for found in verdict.invariances)
    assert verdict.proven_widths == SHAPE.widths
    assert verdict.proven_spans == SHAPE.spans
    assert verifier.passes < (900 if form == "full" else 110)


@pytest.mark.parametrize("fault", REQUIRED, **by_name)
def test_the_quick_form_finds_what_touches_every_row(fault: Fault) -> None:
    assert not verdict_of(of(fault, rate=1), "quick").allows_speculation


@pytest.mark.parametrize(
    "fault", slow_but(REQUIRED, LANES[0], NEIGHBOURS[0], PARTITION[0], WANTED[0]), **by_name
)
def test_the_full_form_finds_what_touches_one_row_in_thirty(fault: Fault) -> None:
    assert not verdict_of(of(fault), "full").allows_speculation


@pytest.mark.parametrize("fault", slow_but([*WIDTHS, *LAST_LANE], WIDTHS[0], LAST_LANE[0]), **by_name)
def test_the_full_form_finds_a_width_that_differs_in_one_row_in_thirty(fault: Fault) -> None:
    rate = 1 if fault in LAST_LANE else ONE_IN
    verdict = verdict_of(of(fault, rate), "full")
    assert fault.number not in verdict.proven_widths
    assert verdict.allows_speculation


@pytest.mark.parametrize("fault", slow_but(SPANS, SPANS[0]), **by_name)
def test_the_full_form_finds_a_span_that_differs_in_one_row_in_thirty(fault: Fault) -> None:
    verdict = verdict_of(of(fault), "full")
    assert verdict.proven_spans == (tuple(span for span in SHAPE.spans[0] if span != fault.number),)
    assert verdict.allows_speculation


@pytest.mark.parametrize("fault", slow_but(REGIONS, REGIONS[0]), **by_name)
def test_the_full_form_finds_a_region_that_differs_in_one_row_in_thirty(fault: Fault) -> None:
    verdict = verdict_of(of(fault), "full")
    assert not verdict.proves(Invariance.REGION)


@pytest.mark.parametrize("name", slow_but(STATES, *list(STATES)[:2]))
def test_the_full_form_finds_rows_that_hear_slots_they_do_not_see_and_passes_that_waver(name: str) -> None:
    assert not verdict_of(STATES[name](SHAPE, rate=ONE_IN), "full").allows_speculation


@pytest.mark.parametrize("form", ["quick", "full"])
def test_a_verdict_says_with_which_seed_its_cases_were_drawn_and_what_was_left_out(form: Form) -> None:
    verdict = verdict_of(NumberVerifier(SHAPE), form, seed=7)
    assert verdict.seed == 7
    together, *others = verdict.left_out
    assert together.startswith("lane, neighbours, stale, partition and wanted were changed together, in ")
    pairs = f"of {len(SPANS) * len(SHAPE.widths)} pairs of a span and one of {len(SHAPE.widths)} widths "
    assert any(pairs in sentence for sentence in others) == (form == "quick")
    assert ("of widths below the block's only a few rows ran" in others) == (form == "quick")
    shown = io.StringIO()
    Console(file=shown, width=80).print(exactness_table(verdict))
    assert "cases drawn with seed 7: lane, neighbours, stale" in " ".join(shown.getvalue().split())


def test_where_circumstances_had_to_be_tried_alone_the_verdict_does_not_say_they_were_not() -> None:
    verdict = verdict_of(of(LANES[0], rate=1), "quick")
    assert not any("together" in sentence for sentence in verdict.left_out)


def test_what_differs_only_when_all_is_changed_at_once_proves_nothing_of_any() -> None:
    def touches(fault: Fault, row, lane: int, plan) -> bool:  # type: ignore[no-untyped-def]
        others: Sequence[str] = [other.kind for other in plan.rows if other is not row]
        return lane == 2 and "pad" in others and plan.width == 4 and 0 < len(plan.wanted) < len(plan.rows)

    verdict = verdict_of(of(Fault("several at once", touches), rate=1), "quick")
    together = (
        Invariance.LANE,
        Invariance.NEIGHBOURS,
        Invariance.STALE,
        Invariance.PARTITION,
        Invariance.WANTED,
    )
    assert not any(verdict.proves(invariance) for invariance in together)


@pytest.mark.slow
def test_other_seeds_draw_other_cases() -> None:
    first, second = NumberVerifier(SHAPE), NumberVerifier(SHAPE)
    assert verdict_of(first, "full").left_out
    verdict_of(second, "full", seed=1)
    assert first.passes_by_width != second.passes_by_width
