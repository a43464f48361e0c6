"""Verdicts: what counts as proof, and for whom."""

import pytest
from pydantic import ValidationError

from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    ExactnessFile,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
    RunEnvironment,
)
from anespec.system.machine import machine_name

HERE = RunEnvironment(backend="torch", library_version="2", machine="one", threads=2, artifact="aa")


def measured(invariance: Invariance, cases: int = 8, unequal: int = 0) -> InvarianceVerdict:
    return InvarianceVerdict(invariance=invariance, cases=cases, unequal=unequal, largest_difference=0)


def verdict(
    *parts: InvarianceVerdict, where: RunEnvironment = HERE, widths: tuple[int, ...] = ()
) -> ExactnessVerdict:
    return ExactnessVerdict(circumstances=where, form="quick", invariances=parts, proven_widths=widths)


REQUIRED = tuple(measured(invariance) for invariance in REQUIRED_FOR_SPECULATION)


def test_proof_needs_cases_and_no_difference() -> None:
    assert measured(Invariance.LANE).proven
    assert not measured(Invariance.LANE, cases=0).proven
    assert not measured(Invariance.LANE, unequal=1).proven


def test_speculation_needs_all_that_are_required() -> None:
    assert verdict(*REQUIRED).allows_speculation
    assert not verdict().allows_speculation
    for missing in range(len(REQUIRED)):
        assert not verdict(*REQUIRED[:missing], *REQUIRED[missing + 1 :]).allows_speculation


def test_the_quick_form_is_not_believed_about_passes_narrower_than_a_block() -> None:
    quick = verdict(*REQUIRED, widths=(1, 2, 4, 8))
    assert quick.usable_widths(4) == (4, 8)
    assert quick.model_copy(update={"form": "full"}).usable_widths(4) == (1, 2, 4, 8)


@pytest.mark.parametrize("invariance", REQUIRED_FOR_SPECULATION)
def test_one_red_invariance_forbids_speculation(invariance: Invariance) -> None:
    parts = [part for part in REQUIRED if part.invariance is not invariance]
    assert not verdict(*parts, measured(invariance, unequal=1)).allows_speculation


def test_region_width_and_span_are_not_needed() -> None:
    bonus = (Invariance.REGION, Invariance.WIDTH, Invariance.SPAN)
    made = verdict(*REQUIRED, *(measured(invariance, unequal=3) for invariance in bonus))
    assert made.allows_speculation
    assert made.complete
    assert not any(made.proves(invariance) for invariance in bonus)


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "openvino"},
        {"library_version": "3"},
        {"machine": "two"},
        {"threads": 1},
        {"artifact": "b"},
    ],
)
def test_a_verdict_holds_under_its_own_circumstances_only(change: dict[str, object]) -> None:
    file = ExactnessFile().with_verdict(verdict(*REQUIRED))
    assert file.find(HERE) is not None
    assert file.find(HERE.model_copy(update=change)) is None


def test_a_newer_verdict_takes_the_place_of_the_older() -> None:
    elsewhere = verdict(where=HERE.model_copy(update={"machine": "two"}))
    newer = verdict(measured(Invariance.LANE, unequal=1))
    file = ExactnessFile().with_verdict(verdict(*REQUIRED)).with_verdict(elsewhere).with_verdict(newer)
    assert file.find(HERE) == newer
    assert file.find(elsewhere.circumstances) == elsewhere
    assert len(file.verdicts) == 2


EVERYTHING = tuple(measured(invariance) for invariance in Invariance)
OF_BEFORE = """{"schema_version": 1, "verdicts": [{"circumstances": %s, "form": "full", "measured_at":
"2026-11-01T00:00:00Z", "invariances": [{"invariance": "lane", "cases": 8, "unequal": 0,
"largest_difference": 0.0}]}]}"""
"""As it was written before widths, spans and wanted rows were looked at."""


def test_a_verdict_of_an_older_version_is_read_and_proves_what_it_says() -> None:
    (old,) = ExactnessFile.model_validate_json(OF_BEFORE % HERE.model_dump_json()).verdicts
    assert old.proves(Invariance.LANE)
    assert old.proven_widths == ()
    assert not old.complete
    assert {Invariance.SPAN, Invariance.WANTED} < set(old.unmeasured)


def test_a_quick_verdict_takes_the_place_of_a_full_one_that_knew_less() -> None:
    """Else it would be measured again and again: what a full one does not say is unknown."""
    old = ExactnessFile.model_validate_json(OF_BEFORE % HERE.model_dump_json())
    new = verdict(*EVERYTHING)
    assert old.with_verdict(new).verdicts == (new,)


@pytest.mark.parametrize(
    ("quick", "kept"),
    [
        (verdict(*EVERYTHING, widths=(2, 4)), True),
        (verdict(*EVERYTHING, widths=(1, 2, 4)), True),
        (verdict(*EVERYTHING, widths=(4,)), False),
        (verdict(*EVERYTHING[:-1], measured(Invariance.REGION, unequal=1), widths=(2, 4)), False),
    ],
    ids=["as much", "more widths", "fewer widths", "an invariance refuted"],
)
def test_a_full_verdict_stands_until_a_quick_one_refutes_it(quick: ExactnessVerdict, kept: bool) -> None:
    full = verdict(*EVERYTHING, widths=(2, 4)).model_copy(update={"form": "full"})
    assert ExactnessFile().with_verdict(full).with_verdict(quick).find(HERE) == (full if kept else quick)


def test_the_file_survives_json() -> None:
    file = ExactnessFile().with_verdict(verdict(*REQUIRED))
    assert ExactnessFile.model_validate_json(file.model_dump_json()) == file


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError):
        measured(Invariance.LANE, unequal=-1)
    with pytest.raises(ValidationError):
        InvarianceVerdict(invariance=Invariance.LANE, cases=1, unequal=0, largest_difference=float("nan"))


def test_the_machine_has_a_stable_name() -> None:
    assert machine_name() == machine_name()
    assert machine_name().strip()
    assert "\n" not in machine_name()
