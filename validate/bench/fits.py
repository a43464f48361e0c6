"""How speed follows from acceptance: least squares, with intervals of 95 % (Student's t).

Acceptance is the share of the rows for drafts that became tokens: a pass gives 1 + a k tokens for k drafts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

LEAST_FREEDOM = 3
"""Points beyond the number of unknowns; with fewer nothing is said."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class SpeedPoint:
    """One measurement: drafts per pass, the share of them that was accepted, and the speedup."""

    drafts: int
    acceptance: float
    speedup: float


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its interval; an end is None where the data set no limit."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LineFit:
    """speedup = intercept + slope * acceptance, for one number of drafts.

    `break_even` is the acceptance from which on speculation pays, with Fieller's interval; None where speed
    does not grow with acceptance. `half_widths` of the line's own interval stand beside `acceptances`.
    """

    drafts: int
    points: int
    intercept: float
    slope: float
    break_even: Estimate | None
    acceptances: tuple[float, ...]
    half_widths: tuple[float, ...]

    def at(self, acceptance: float) -> float:
        """The speedup on the line."""
        return self.intercept + self.slope * acceptance


@dataclass(frozen=True)
class CostFit:
    """speedup = (1 + a k) / ((k + 1) r + 1 + b k^2), with measured a, fitted over several numbers of drafts.

    `r` is what a draft costs and `b` how much dearer a pass gets with the square of its drafts, in plain
    passes. `error` is the root mean square of speedup measured less speedup fitted.
    """

    points: int
    r: Estimate
    b: Estimate
    error: float

    def speedup(self, drafts: int, acceptance: float) -> float:
        """Return the formula's value."""
        return (1 + acceptance * drafts) / self.cost(drafts)

    def cost(self, drafts: int) -> float:
        """A pass with so many drafts, in plain passes."""
        return (drafts + 1) * self.r.value + 1 + self.b.value * drafts**2

    def break_even(self, drafts: int) -> float:
        """The acceptance at which so many drafts begin to pay."""
        return (self.cost(drafts) - 1) / drafts


def fit_line(points: Sequence[SpeedPoint], marks: int = 21) -> LineFit | None:
    """The line through points of one number of drafts; None for too few, or for one acceptance only."""
    freedom = len(points) - 2
    x = np.array([point.acceptance for point in points])
    if freedom < LEAST_FREEDOM or np.ptp(x) < 1e-9:
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
    """r and b of the formula, which is linear in them once solved for the cost of a pass.

    None for too few points, or where all have the same number of drafts.
    """
    freedom = len(points) - 2
    k = np.array([point.drafts for point in points], float)
    if freedom < LEAST_FREEDOM or len(set(k.tolist())) < 2:
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
    )


def student_t(freedom: int) -> float:
    """The quantile of Student's t that CONFIDENCE takes on both sides, for 3 degrees of freedom or more.

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
    """Both coefficients, and their covariance."""
    inverse = np.linalg.inv(design.T @ design).astype(np.float64)
    found = inverse @ design.T @ values
    left = values - design @ found
    variance = float(left @ left) / (len(values) - 2)
    return (float(found[0]), float(found[1])), variance * inverse


def _break_even(intercept: float, slope: float, covariance: NDArray[np.float64], t: float) -> Estimate | None:
    """Where the line reaches 1, and all acceptances at which its interval holds 1 (Fieller's theorem)."""
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
