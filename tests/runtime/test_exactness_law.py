"""Why the law of exactness is what it is, on a trained model (DESIGN.md section 5).

One shape and home slots leave a row's bits alone, whatever stands beside it or stood there before.
Another width or other slots do not, and no rule of arithmetic says that they should.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from by_hand import greedy, rows_for, run, run_in_lane, run_tokens, same_bits, states
from slow import slow_but

from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.passes import Logits, Row, RowKind, RowSlots

PROMPT = [1, 385, 328, 432, 274, 287]
"""What stories260K's vocabulary makes of "One day, Tom"."""

WRONG = 77
"""A token that the model would not write; drafts of it are all rejected."""


@pytest.fixture(scope="module")
def text(stories_cpu: Path) -> list[int]:
    """The prompt and 114 greedy tokens."""
    verifier = open_verifier(stories_cpu, "torch", threads=1)
    tokens, _ = greedy(verifier, PROMPT, 114)
    verifier.close()
    return PROMPT + tokens


@pytest.fixture
def reference(stories_cpu: Path) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(stories_cpu, "torch", threads=1)
    yield verifier
    verifier.close()


@pytest.fixture(params=slow_but(["torch", "openvino", "mlx"], "openvino"))
def verifier(stories_cpu: Path, request: pytest.FixtureRequest) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(stories_cpu, request.param, threads=1)
    yield verifier
    verifier.close()


def reset(verifier: ArtifactVerifier, value: float = 0) -> None:
    """Fill every slot of the state."""
    slots = verifier.shape.pools[0].region_slots
    verifier.import_slots(0, 0, [np.full_like(held, value) for held in verifier.export_slots(0, 0, slots)])


def one_by_one(
    verifier: ArtifactVerifier, text: Sequence[int], lane: int = 0, width: int | None = None
) -> Logits:
    """Every token in a pass of its own, in one lane."""
    return np.concatenate(
        [run_in_lane(verifier, row, lane, width) for row in rows_for(verifier, text, 0, RowKind.CARRY)]
    )


def assert_same(
    verifier: ArtifactVerifier, found: Logits, expected: Logits, held: Sequence[np.ndarray], slots: int
) -> None:
    """The logits and the first `slots` slots of every state are equal bit for bit."""
    assert same_bits(found, expected)
    for now, then in zip(states(verifier), held, strict=True):
        assert (now[:, :, :slots] == then[:, :, :slots]).all()


@pytest.mark.slow
@pytest.mark.parametrize("lane", slow_but([1, 2, 3], 2))
def test_at_one_shape_the_lane_changes_nothing(
    verifier: ArtifactVerifier, text: list[int], lane: int
) -> None:
    expected, held = one_by_one(verifier, text), states(verifier)
    reset(verifier)
    assert_same(verifier, one_by_one(verifier, text, lane), expected, held, len(text))


def test_at_one_shape_neighbours_and_rejected_drafts_change_nothing(
    verifier: ArtifactVerifier, text: list[int]
) -> None:
    expected, held = one_by_one(verifier, text), states(verifier)
    reset(verifier)
    found = []
    for position, token in enumerate(text):
        drafts = rows_for(verifier, [WRONG] * 3, position + 1, RowKind.DRAFT)
        found.append(run(verifier, [*rows_for(verifier, [token], position), *drafts])[:1])
    assert_same(verifier, np.concatenate(found), expected, held, len(text))


@pytest.mark.parametrize("stale", slow_but([1.0, -20.0], -20.0))
def test_at_one_shape_what_stale_slots_hold_changes_nothing(
    verifier: ArtifactVerifier, text: list[int], stale: float
) -> None:
    expected, held = run_tokens(verifier, text), states(verifier)
    reset(verifier, stale)
    assert_same(verifier, run_tokens(verifier, text), expected, held, len(text))


@pytest.mark.parametrize("sizes", slow_but([(4,), (1, 4, 2), (3,), (2, 1, 1, 4)], (1, 4, 2)))
def test_at_one_shape_the_partition_changes_nothing(
    verifier: ArtifactVerifier, text: list[int], sizes: tuple[int, ...]
) -> None:
    expected, held = one_by_one(verifier, text), states(verifier)
    reset(verifier)
    found, start = [], 0
    while start < len(text):
        size = sizes[len(found) % len(sizes)]
        found.append(run(verifier, rows_for(verifier, text[start : start + size], start)))
        start += size
    assert_same(verifier, np.concatenate(found), expected, held, len(text))


@pytest.mark.slow
def test_another_width_changes_bits(reference: ArtifactVerifier, text: list[int]) -> None:
    """Plain decoding at T = 1 beside speculation at T = 4 would not be the same computation."""
    expected = one_by_one(reference, text)
    reset(reference)
    found = one_by_one(reference, text, width=1)
    assert not same_bits(found, expected)
    np.testing.assert_allclose(found, expected, atol=0.1)


@pytest.mark.slow
def test_varying_the_width_within_a_text_changes_its_state(
    reference: ArtifactVerifier, text: list[int]
) -> None:
    """Passes of 4 rows where drafts are tried, of 1 row elsewhere: what a naive runtime does."""
    expected, held = run_tokens(reference, text), states(reference)
    reset(reference)
    found, start = [], 0
    while start < len(text):
        width = 4 if start % 3 == 0 else 1
        found.append(run(reference, rows_for(reference, text[start : start + width], start), width))
        start += width
    assert not same_bits(np.concatenate(found), expected)
    assert any((now != then).any() for now, then in zip(states(reference), held, strict=True))


def moved(row: Row, slot_of: Sequence[int]) -> Row:
    """The row with every position's K/V in the slot that `slot_of` says."""
    visible = tuple(range(slot_of[p], slot_of[p] + 1) for p in range(row.position + 1))
    return replace(row, slots=(RowSlots(slot_of[row.position], visible),))


def test_other_slots_than_home_change_bits(verifier: ArtifactVerifier, text: list[int]) -> None:
    """Attention adds the same numbers up in another order."""

    def played(slot_of: Sequence[int]) -> Logits:
        reset(verifier)
        found = []
        for start in range(0, len(text), 4):
            rows = [moved(row, slot_of) for row in rows_for(verifier, text[start : start + 4], start)]
            found.append(run(verifier, rows))
        return np.concatenate(found)

    home = run_tokens(verifier, text)
    assert same_bits(played(range(len(text))), home)
    permuted = played(range(len(text))[::-1])
    assert not same_bits(permuted, home)
    np.testing.assert_allclose(permuted, home, atol=0.1)
