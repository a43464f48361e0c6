"""The axes of plots hold their values between round ends."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.validate.bench.plots import Axis, up


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
