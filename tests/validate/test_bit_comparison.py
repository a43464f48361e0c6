"""What counts as a difference: bits, not values, and whatever is not finite."""

from dataclasses import replace

import numpy as np
import pytest
from numpy_verifier import NumpyVerifier, shape_of

from anespec.runtime.passes import Candidate, LogitsRequest, RowLogits
from anespec.runtime.sampling.row_logits import row_logits
from anespec.validate.exactness.bit_comparison import FoundRow, Recording, compare, same_bits
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.invariance_cases import Probe, one_row_a_pass

REDUCED = LogitsRequest(best=True, top=3, chosen=(4, 9))


@pytest.fixture(scope="module")
def recording() -> Recording:
    runner, probe = CaseRunner(NumpyVerifier(shape_of())), Probe((), 0, (1, 2, 3))
    runner.prepare(probe)
    return runner.run(one_row_a_pass(probe, 4), probe)


def reduced(recording: Recording) -> FoundRow:
    """What a verifier would find of the row at position 1, where that is wanted."""
    logits = recording.rows[1].found.logits
    assert logits is not None
    return FoundRow(REDUCED, row_logits(logits, REDUCED))


def with_row(recording: Recording, row: FoundRow) -> Recording:
    return replace(recording, rows={**recording.rows, 1: row})


def test_bits_are_compared_not_values() -> None:
    zero = np.zeros(3, np.float16)
    assert same_bits(zero, zero.copy())
    assert not same_bits(zero, -zero)


def test_a_difference_in_the_state_alone_is_found(recording: Recording) -> None:
    states = dict(recording.states)
    states[1] = tuple(np.nextafter(a, np.float16(9)) for a in states[1])
    found = compare(recording, replace(recording, states=states), "altered")
    assert (found.cases, found.unequal, found.largest) == (6, 1, 0.0)
    assert found.first == "altered: the K/V bits at position 1 differ"


def test_what_was_reduced_is_compared_with_the_reduction_of_all(recording: Recording) -> None:
    same = compare(recording, with_row(recording, reduced(recording)), "reduced")
    assert (same.cases, same.unequal) == (6, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"best": None},
        {"best": Candidate(7, 100.0)},
        {"best": Candidate(7, float("nan"))},
        {"top": ()},
        {"chosen": (0.5, 0.25)},
    ],
    ids=str,
)
def test_another_reduction_is_a_difference(recording: Recording, other: dict[str, object]) -> None:
    row = reduced(recording)
    found = compare(recording, with_row(recording, replace(row, found=replace(row.found, **other))), "other")
    assert (found.cases, found.unequal) == (6, 1)
    assert found.first == "other: position 1 has different top or chosen logits"


def test_logits_that_were_wanted_and_are_not_there_are_a_difference(recording: Recording) -> None:
    row = recording.rows[1]
    found = compare(recording, with_row(recording, replace(row, found=RowLogits())), "none")
    assert (found.cases, found.unequal) == (6, 1)


def test_a_number_that_is_not_finite_is_seen(recording: Recording) -> None:
    row = reduced(recording)
    assert row.is_finite
    assert not replace(row, found=replace(row.found, best=Candidate(7, float("inf")))).is_finite
    assert not replace(row, found=replace(row.found, chosen=(float("nan"),))).is_finite
