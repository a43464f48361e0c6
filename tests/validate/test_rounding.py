"""Rows that round: every operation's result is fp16, and what is one operation is rounded once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from anespec.gguf.container import GGUFFile
from anespec.validate.golden.closeness import LEAST_ROUNDING, closeness
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.reference_parts import (
    DOUBT_GROWS,
    EXCHANGES,
    Doubts,
    Projection,
    rms_norm,
    softmax,
)
from anespec.validate.golden.rounding import Rounded, Rounding, exact, rounded_like

NEAREST = Rounding()
numbers = arrays(np.float32, st.integers(1, 40), elements=st.floats(-65000, 65000, width=32))
FAMILIES = sorted(path.stem for path in (Path(__file__).parents[1] / "data" / "families").glob("*.gguf"))


@given(numbers)
def test_the_nearest_are_fp16_s(values: np.ndarray) -> None:
    assert (exact(NEAREST.on(values)) == values.astype(np.float16).astype(np.float32)).all()


@given(numbers, st.integers(1, 99))
def test_at_random_it_is_one_of_the_two_neighbours(values: np.ndarray, seed: int) -> None:
    found = exact(Rounding(seed).on(values)).astype(np.float16)
    near = values.astype(np.float16)
    neighbours = [near, np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(-np.inf))]
    assert np.any([found == each for each in neighbours], axis=0).all()
    is_fp16 = near.astype(np.float32) == values
    assert (found[is_fp16] == near[is_fp16]).all()


def test_at_random_it_is_right_on_average() -> None:
    value = np.float32(1 + 2.0**-12)  # a quarter of the way between two fp16
    found = exact(Rounding(3).on(np.full(40_000, value, np.float32)))
    assert abs(found.mean() - value) < 2.0**-10 / 100
    assert set(np.unique(found).tolist()) == {1.0, 1 + 2.0**-10}


def test_numbers_beyond_fp16_keep_their_size_and_others_their_kind() -> None:
    values = np.array([1e6, -3e30, np.inf, -np.inf, np.nan, 0, -0.0], np.float32)
    found = exact(NEAREST.on(values))
    assert np.isnan(found[4]) and (np.isinf(found[2:4])).all()
    assert np.allclose(found[:2], values[:2], rtol=2.0**-11)
    assert np.signbit(found[6]) and not found[5:].any()


def is_fp16(values: np.ndarray) -> bool:
    plain = exact(values)
    return bool((plain == exact(NEAREST.on(plain))).all())


def test_each_operation_is_rounded_and_a_composed_one_once() -> None:
    rng = np.random.default_rng(1)
    x, y = (NEAREST.on(rng.standard_normal((5, 96))) for _ in range(2))
    for found in (x * y, x + y, 1 / x, np.exp(x), x @ y.T, x.mean(axis=-1), np.einsum("ij,kj->ik", x, y)):
        assert isinstance(found, Rounded) and is_fp16(found)
    in_place = x.copy()
    in_place *= 1.1
    assert is_fp16(in_place)
    assert isinstance(np.concatenate([np.zeros((1, 96), np.float32), x]), Rounded)
    assert isinstance(np.where(x > 0, x, y), Rounded)
    # Squares of large rows would leave fp16's range, or lose all of small ones.
    large = NEAREST.on(x * 3000)
    once = exact(NEAREST.on(rms_norm(exact(large), 1e-6)))
    assert (exact(rms_norm(large, 1e-6)) == once).all()
    assert (exact(softmax(x.copy())) == exact(NEAREST.on(softmax(exact(x).copy())))).all()
    assert not isinstance(exact(x) * exact(y), Rounded)
    assert isinstance(rounded_like(exact(x), y), Rounded) and not isinstance(
        rounded_like(exact(x), exact(y)), Rounded
    )


def test_activations_that_become_int8_have_a_scale_for_each_group() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((4, 150)).astype(np.float32)
    rows[:, 0] = 100
    weight = rng.standard_normal((8, 150)).astype(np.float32)
    projection = Projection(weight, None)
    found = exact(projection(Rounding(None, 128).on(rows)))
    expected = np.float32(0)
    for group in (slice(0, 128), slice(128, 150)):
        part = exact(NEAREST.on(rows[:, group]))
        scale = np.abs(part).max(axis=1, keepdims=True) / 127
        expected = expected + (np.rint(part / scale) * scale) @ weight[:, group].T
    assert np.allclose(found, expected, rtol=2.0**-10, atol=1e-3)
    # Two rows that are both computed, as in attention, stay floats.
    both = Rounding(None, 128).on(rows)
    assert np.allclose(exact(both @ both.T), exact(NEAREST.on(rows) @ NEAREST.on(rows).T))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_rounds_in_every_layer(family: str, families: Path) -> None:
    """Where a formula drops the rounding, what follows is exact, and a limit is too small."""
    with GGUFFile(families / f"{family}.gguf") as file:
        reference = Reference(file, 64)
        ids = [3, 7, 11, 5, 19]
        (stretch,) = reference.stretches([(ids, range(5))])
        rows = NEAREST.on(reference.embed(ids))
        for facts in reference.facts.layers:
            before = exact(rows)
            rows = reference.layer(facts.index, rows, [stretch])
            assert isinstance(rows, Rounded) and is_fp16(rows)
            assert (exact(rows) != before).any()
        assert isinstance(reference.logits(rows[:, :]), np.ndarray)
        exact_logits = reference.logits(exact(rows))
        rounded_logits = exact(reference.logits(rows))
        assert 0 < np.abs(exact_logits - rounded_logits).max() < 0.05 * np.abs(exact_logits).max()


EXPECTED = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)


def off_by(*shares: float) -> np.ndarray:
    """The expected rows, each longer by a share of its own length."""
    return EXPECTED * (1 + np.array(shares, np.float32)[:, None])


def test_each_row_has_the_limit_that_rounding_gives_it() -> None:
    """A row that rounding turns may differ further, and no other row with it."""
    rounded = [off_by(0.001, 0.001, 0.05, 0.001, 0.001, 0.001), off_by(0, 0, -0.01, 0, 0, 0)]
    turned = closeness(EXPECTED, off_by(0.002, 0, 0.15, 0, 0, 0), EXPECTED, rounded, slack=4)
    assert turned.worst == 2 and turned.error < turned.limit == pytest.approx(0.2, rel=0.01)
    wrong = closeness(EXPECTED, off_by(0, 0.01, 0.15, 0, 0, 0), EXPECTED, rounded, slack=4)
    assert wrong.worst == 1 and wrong.error > wrong.limit == pytest.approx(0.004, rel=0.01)
    assert not turned.unsure + wrong.unsure


def test_a_row_that_rounding_may_change_as_much_tells_nothing() -> None:
    rounded = [off_by(0.001, 0.001, 0.3, 0.001, 0.001, 0.001)]
    found = closeness(EXPECTED, off_by(0, 0, 5, 0, 0, 0), EXPECTED, rounded, slack=4)
    assert found.unsure == 1 and found.error < found.limit
    values = off_by(0, 0, 0, 0, 0, 0)
    values[2, 5] = np.inf
    assert closeness(EXPECTED, values, EXPECTED, rounded, slack=4).not_finite == 1


def test_a_doubt_about_experts_raises_the_limit_of_its_row_alone() -> None:
    length = np.linalg.norm(EXPECTED, axis=1)
    doubts = np.array([0, 0.9, 0, 0, 0, 0], np.float32) * length
    rounded = [off_by(0, 0.1, 0, 0, 0, 0)]
    found = closeness(EXPECTED, off_by(0, 0.3, 0, 0, 0, 0), EXPECTED, rounded, 4, doubts)
    assert found.worst == 1 and found.error < found.limit < 1
    found = closeness(EXPECTED, off_by(0.3, 0.3, 0, 0, 0, 0), EXPECTED, rounded, 4, doubts)
    assert found.worst == 0 and found.error > 10 * found.limit == pytest.approx(40 * LEAST_ROUNDING)


def test_a_doubt_about_experts_grows_in_the_layers_after_it_and_passes_to_later_rows() -> None:
    doubts = Doubts.none(3)
    doubts.enter_layer()
    doubts.exchange(np.array([0, 0.1, 0], np.float32))
    assert doubts.total == pytest.approx([0, 0.1 * EXCHANGES, 0])
    doubts.enter_layer()
    first, own, later = doubts.total
    assert first == 0 and own > later > DOUBT_GROWS * 0.1
    grown = doubts.total
    doubts.enter_layer()
    assert doubts.total == pytest.approx(grown)
