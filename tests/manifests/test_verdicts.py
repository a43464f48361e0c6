"""Verdicts: what counts as proof, and for whom."""

import pytest
from pydantic import ValidationError

from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    Circumstances,
    ExactnessFile,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
    machine_name,
)

HERE = Circumstances(backend="torch", library_version="2", machine="one", threads=2, artifact="aa")


def measured(invariance: Invariance, cases: int = 8, unequal: int = 0) -> InvarianceVerdict:
    return InvarianceVerdict(invariance=invariance, cases=cases, unequal=unequal, largest_difference=0)


def verdict(*parts: InvarianceVerdict, where: Circumstances = HERE) -> ExactnessVerdict:
    return ExactnessVerdict(circumstances=where, form="quick", invariances=parts)


ALL_FOUR = tuple(measured(invariance) for invariance in REQUIRED_FOR_SPECULATION)


def test_proof_needs_cases_and_no_difference() -> None:
    assert measured(Invariance.LANE).proven
    assert not measured(Invariance.LANE, cases=0).proven
    assert not measured(Invariance.LANE, unequal=1).proven


def test_speculation_needs_all_four() -> None:
    assert verdict(*ALL_FOUR).allows_speculation
    assert not verdict().allows_speculation
    for missing in range(4):
        assert not verdict(*ALL_FOUR[:missing], *ALL_FOUR[missing + 1 :]).allows_speculation


@pytest.mark.parametrize("invariance", REQUIRED_FOR_SPECULATION)
def test_one_red_invariance_forbids_speculation(invariance: Invariance) -> None:
    parts = [part for part in ALL_FOUR if part.invariance is not invariance]
    assert not verdict(*parts, measured(invariance, unequal=1)).allows_speculation


def test_region_and_width_are_not_needed() -> None:
    bonus = (measured(Invariance.REGION, unequal=3), measured(Invariance.WIDTH, unequal=8))
    made = verdict(*ALL_FOUR, *bonus)
    assert made.allows_speculation
    assert not made.proves(Invariance.REGION)
    assert not made.proves(Invariance.WIDTH)


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
    file = ExactnessFile().with_verdict(verdict(*ALL_FOUR))
    assert file.find(HERE) is not None
    assert file.find(HERE.model_copy(update=change)) is None


def test_a_newer_verdict_takes_the_place_of_the_older() -> None:
    elsewhere = verdict(where=HERE.model_copy(update={"machine": "two"}))
    newer = verdict(measured(Invariance.LANE, unequal=1))
    file = ExactnessFile().with_verdict(verdict(*ALL_FOUR)).with_verdict(elsewhere).with_verdict(newer)
    assert file.find(HERE) == newer
    assert file.find(elsewhere.circumstances) == elsewhere
    assert len(file.verdicts) == 2


def test_the_file_survives_json() -> None:
    file = ExactnessFile().with_verdict(verdict(*ALL_FOUR))
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
