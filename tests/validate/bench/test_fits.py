"""The fits find what was planted, and their intervals are what their definitions say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.validate.bench.fits import CostFit, Estimate, SpeedPoint, fit_cost, fit_line, student_t
from anespec.validate.bench.sentences import line_sentence


def on_line(noise: float = 0.0, count: int = 12) -> list[SpeedPoint]:
    rng = np.random.default_rng(3)
    at = np.linspace(0.05, 0.9, count)
    return [SpeedPoint(3, float(a), float(0.8 + 2 * a + noise * rng.normal())) for a in at]


def test_a_line_without_noise_is_found_exactly() -> None:
    line = fit_line(on_line())
    assert line is not None
    assert (line.intercept, line.slope) == (pytest.approx(0.8), pytest.approx(2.0))
    assert line.break_even is not None
    assert line.break_even.value == pytest.approx(0.1)
    assert line.break_even.low == pytest.approx(0.1, abs=1e-5)
    assert line.break_even.high == pytest.approx(0.1, abs=1e-5)
    assert max(line.half_widths) < 1e-6


@given(st.floats(0.01, 0.15))
def test_at_the_ends_of_the_break_even_the_lines_own_interval_ends_at_1(noise: float) -> None:
    points = on_line(noise)
    line = fit_line(points)
    assert line is not None
    assert line.break_even is not None
    assert line.break_even.low is not None
    assert line.break_even.high is not None
    assert line.break_even.low < line.break_even.value < line.break_even.high
    x, y = np.array([(p.acceptance, p.speedup) for p in points]).T
    left = y - line.intercept - line.slope * x
    spread = np.sqrt(left @ left / (len(x) - 2))
    for end in (line.break_even.low, line.break_even.high):
        # The usual formula of a line's interval, from sums of squares.
        error = spread * np.sqrt(1 / len(x) + (end - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
        assert abs(line.at(end) - 1) == pytest.approx(student_t(len(x) - 2) * error, rel=1e-6)


def test_where_speed_does_not_grow_there_is_no_break_even() -> None:
    falling = [SpeedPoint(3, p.acceptance, 3 - p.speedup) for p in on_line()]
    line = fit_line(falling)
    assert line is not None
    assert line.break_even is None
    vague = [SpeedPoint(3, 0.1 * i, 1 + (0.5 if i % 2 else -0.5) + 0.01 * i) for i in range(8)]
    line = fit_line(vague)
    assert line is not None
    assert line.break_even == Estimate(pytest.approx(line.break_even.value), None, None)  # type: ignore[union-attr]


def test_too_few_points_say_nothing() -> None:
    assert fit_line(on_line(count=4)) is None
    assert fit_line(on_line(count=5)) is not None
    assert fit_line([SpeedPoint(3, 0.5, 1.0 + i) for i in range(9)]) is None
    assert fit_cost(on_line()) is None, "one number of drafts cannot tell r from b"


@given(st.floats(0, 0.5), st.floats(-0.01, 0.2))
def test_the_formula_is_found_again(r: float, b: float) -> None:
    points = [
        SpeedPoint(k, a, (1 + a * k) / ((k + 1) * r + 1 + b * k**2))
        for k in (1, 2, 3, 7)
        for a in (0.1, 0.4, 0.8)
    ]
    fit = fit_cost(points)
    assert fit is not None
    assert fit.r.value == pytest.approx(r, abs=1e-9)
    assert fit.b.value == pytest.approx(b, abs=1e-9)
    assert fit.error == pytest.approx(0, abs=1e-9)
    for point in points:
        assert fit.speedup(point.drafts, point.acceptance) == pytest.approx(point.speedup)
        assert fit.speedup(point.drafts, fit.break_even(point.drafts)) == pytest.approx(1)


def test_noise_widens_the_intervals_and_they_hold_the_truth() -> None:
    rng = np.random.default_rng(5)

    def fitted(noise: float) -> CostFit:
        points = [
            SpeedPoint(k, a, (1 + a * k) / (((k + 1) * 0.05 + 1 + 0.01 * k**2) * (1 + noise * rng.normal())))
            for k in (1, 2, 3)
            for a in np.linspace(0.1, 0.9, 12).tolist()
        ]
        fit = fit_cost(points)
        assert fit is not None
        return fit

    quiet, loud = fitted(0.01), fitted(0.1)
    for fit in (quiet, loud):
        assert fit.r.low is not None
        assert fit.r.high is not None
        assert fit.r.low < 0.05 < fit.r.high
    assert loud.r.high - loud.r.low > 4 * (quiet.r.high - quiet.r.low)  # type: ignore[operator]


def test_r_squared_is_the_share_of_the_variance_that_the_formula_explains() -> None:
    def point(k: int, a: float, off: float = 0.0) -> SpeedPoint:
        return SpeedPoint(k, a, (1 + a * k) / ((k + 1) * 0.05 + 1 + 0.01 * k**2) + off)

    places = [(k, a) for k in (2, 4, 6) for a in (0.2, 0.5, 0.8)]
    exact = fit_cost([point(k, a) for k, a in places])
    assert exact is not None and exact.r_squared == pytest.approx(1.0)
    off = fit_cost([point(k, a, 0.3 if i % 2 else -0.3) for i, (k, a) in enumerate(places)])
    assert off is not None and off.r_squared is not None
    speeds = np.array([point(k, a, 0.3 if i % 2 else -0.3).speedup for i, (k, a) in enumerate(places)])
    left = speeds - [off.speedup(k, a) for k, a in places]
    assert off.r_squared == pytest.approx(1 - np.sum(left**2) / np.sum((speeds - speeds.mean()) ** 2))
    assert off.r_squared < 0.9
    flat = fit_cost([SpeedPoint(k, 0.0, 1.0) for k, _ in places])
    assert flat is not None and flat.r_squared is None


@pytest.mark.parametrize(("freedom", "t"), [(3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)])
def test_students_t(freedom: int, t: float) -> None:
    assert student_t(freedom) == pytest.approx(t, rel=5e-3)


@pytest.mark.parametrize(
    ("crossing", "said"),
    [
        (0.25, "break-even at an acceptance of 25.0 % (95 %: 25.0 % to 25.0 %)."),
        (-0.5, "drafts pay at any acceptance (95 %: below 0 % to below 0 %)."),
        (1.5, "drafts pay at no acceptance, not even of all (95 %: above 100 % to above 100 %)."),
    ],
)
def test_no_break_even_is_said_to_be_where_there_is_no_acceptance(crossing: float, said: str) -> None:
    shares = np.linspace(0.05, 0.9, 12)
    line = fit_line([SpeedPoint(3, float(share), float(1 + 2 * (share - crossing))) for share in shares])
    assert line is not None
    assert line_sentence(line).endswith(said)
