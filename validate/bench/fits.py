"""Fit speed to acceptance by least squares, with intervals of 95 % (Student's t).

Acceptance is the share of the draft rows that became tokens. A pass with k drafts and acceptance a makes 1 +
a k tokens on average.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

MIN_DEGREES_OF_FREEDOM = 3
"""The number of points less the number of unknowns; with fewer there is no fit."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class SpeedPoint:
    """One measurement: the drafts of a pass, the share of them that was accepted, and the speedup."""

    drafts: int
    acceptance: float
    speedup: float


@dataclass(frozen=True)
class Estimate:
    """A fitted value and the ends of its interval; an end is None where the data do not bound the value."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LineFit:
    """The line speedup = intercept + slope * acceptance, for one number of drafts.

    `break_even` is the acceptance above which speculation pays, with Fieller's interval; None if speed does
    not grow with acceptance. `half_widths` are half the widths of the line's confidence interval at
    `acceptances`.
    """

    drafts: int
    points: int
    intercept: float
    slope: float
    break_even: Estimate | None
    acceptances: tuple[float, ...]
    half_widths: tuple[float, ...]

    def at(self, acceptance: float) -> float:
        """Return the fitted speedup at an acceptance."""
        return self.intercept + self.slope * acceptance


@dataclass(frozen=True)
class CostFit:
    """The formula speedup = (1 + a k) / ((k + 1) r + 1 + b k^2), fitted over several numbers of drafts k.

    The acceptance a is measured; r and b are fitted, in units of a plain pass: `r` is the cost of a row, and
    `b` the further cost per square of the number of drafts. `error` is the root mean square of measured less
    fitted speedup. `r_squared` is the share of the speedups' variance that the formula explains; None if they
    do not vary.
    """

    points: int
    r: Estimate
    b: Estimate
    error: float
    r_squared: float | None = None

    def speedup(self, drafts: int, acceptance: float) -> float:
        """Return the speedup by the formula."""
        return (1 + acceptance * drafts) / self.cost(drafts)

    def cost(self, drafts: int) -> float:
        """Return the cost of a pass with that many drafts, in plain passes."""
        return (drafts + 1) * self.r.value + 1 + self.b.value * drafts**2

    def break_even(self, drafts: int) -> float:
        """Return the acceptance above which that many drafts pay."""
        return (self.cost(drafts) - 1) / drafts


def fit_line(points: Sequence[SpeedPoint], marks: int = 21) -> LineFit | None:
    """Return the line through points with the same number of drafts.

    Returns None for too few points, or if all have the same acceptance. `marks` is the number of acceptances
    at which the interval is computed.
    """
    freedom = len(points) - 2
    x = np.array([point.acceptance for point in points])
    if freedom < MIN_DEGREES_OF_FREEDOM or np.ptp(x) < 1e-9:
        return None
    y = np.array([point.speedup for point in points])
    design = np.stack([np.ones_like(x), x], axis=1)
    (intercept, slope), covariance = _least_squares(design, y)
    t = student_t(freedom)
    at = np.linspace(x.min(), x.max(), marks)
    rows = np.stack([np.ones_like(at), at], axis=1)
    variances = np.einsum("ij,jk,ik->i", rows, covariance, rows)
    return LineFit(
        drafts=points[0].drafts,
        points=len(points),
        intercept=intercept,
        slope=slope,
        break_even=_break_even(intercept, slope, covariance, t),
        acceptances=tuple(at.tolist()),
        half_widths=tuple((t * np.sqrt(np.maximum(variances, 0))).tolist()),
    )


def fit_cost(points: Sequence[SpeedPoint]) -> CostFit | None:
    """Fit r and b; solved for the cost of a pass, the formula is linear in them.

    Returns None for too few points, or if all have the same number of drafts.
    """
    freedom = len(points) - 2
    k = np.array([point.drafts for point in points], float)
    if freedom < MIN_DEGREES_OF_FREEDOM or len(set(k.tolist())) < 2:
        return None
    a, y = (np.array([getattr(point, name) for point in points]) for name in ("acceptance", "speedup"))
    (r, b), covariance = _least_squares(np.stack([k + 1, k**2], axis=1), (1 + a * k) / y - 1)
    off = student_t(freedom) * np.sqrt(np.maximum(np.diag(covariance), 0))
    fitted = (1 + a * k) / ((k + 1) * r + 1 + b * k**2)
    return CostFit(
        points=len(points),
        r=Estimate(r, r - off[0], r + off[0]),
        b=Estimate(b, b - off[1], b + off[1]),
        error=float(np.sqrt(np.mean((y - fitted) ** 2))),
        r_squared=None
        if np.ptp(y) < 1e-9
        else float(1 - np.sum((y - fitted) ** 2) / np.sum((y - y.mean()) ** 2)),
    )


def student_t(freedom: int) -> float:
    """Return the two-sided quantile of Student's t at CONFIDENCE, for 3 degrees of freedom or more.

    Source: Abramowitz and Stegun, 26.7.5; within 0.5 % for 3 degrees, better for more.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def _least_squares(
    design: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[tuple[float, float], NDArray[np.float64]]:
    """Return the two coefficients and their covariance."""
    inverse = np.linalg.inv(design.T @ design).astype(np.float64)
    found = inverse @ design.T @ values
    left = values - design @ found
    variance = float(left @ left) / (len(values) - 2)
    return (float(found[0]), float(found[1])), variance * inverse


def _break_even(intercept: float, slope: float, covariance: NDArray[np.float64], t: float) -> Estimate | None:
    """Return where the line reaches 1, with the interval of acceptances by Fieller's theorem."""
    if slope <= 0:
        return None
    value = (1 - intercept) / slope
    a = slope**2 - t**2 * covariance[1, 1]
    b = (intercept - 1) * slope - t**2 * covariance[0, 1]
    c = (intercept - 1) ** 2 - t**2 * covariance[0, 0]
    if a <= 0:
        return Estimate(value, None, None)
    root = math.sqrt(max(0.0, b * b - a * c))
    return Estimate(value, (-b - root) / a, (-b + root) / a)
