"""Measure how close rows computed by a shard or by the whole stack are to the reference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.validate.golden.figures import UNSURE
from anespec.validate.golden.rounding import Floats

ROUNDING_FLOOR = 1 / 256
"""The smallest change that errors are measured by, as a share of a row's norm: a few fp16 roundings of the
residual."""

ROWS_AT_ONCE = 32
"""The rows that are compared in float64 at once; rows of logits are long."""

LEAST_ROUNDING = 2.0**-11
"""The least error that rounding is taken to make: that of one fp16."""

MOST_DOUBT = 1.3
"""The largest limit of a doubted row. Rows that have nothing to do with each other differ by 1.4."""


@dataclass(frozen=True)
class Closeness:
    """The comparison of rows; all but the counts are those of the row that is nearest to its limit."""

    cosine: float
    error: float
    limit: float
    max_error: float
    worst: int
    unsure: int
    not_finite: int


def closeness(
    expected: Floats,
    found: NDArray[np.floating[Any]],
    change: Floats,
    rounded: Sequence[Floats] = (),
    slack: float = 1.0,
    doubts: Floats | None = None,
) -> Closeness:
    """Compare rows of two arrays [rows, channels]; values that are not finite count as zero.

    Errors are divided by the norm of `change` (see ShardFigures). `rounded` are the same rows computed with
    rounding, in one or more ways. A row's rounding error is the largest of them, or, since few ways are
    tried, the median of all rows' if that is larger. Its limit is `slack` times that. Without `rounded` all
    rows have the same limit. `doubts` [rows] are norms of differences that other experts may make, which
    rounding may choose (see Doubts): they raise the limit.
    """
    pieces = [_compared(expected[some], found[some], change[some]) for some in _slices(len(expected))]
    columns = (np.concatenate(each) for each in zip(*pieces, strict=True))
    difference, largest, cosine, scale, not_finite = columns
    error = difference / scale
    doubt = np.zeros(len(expected)) if doubts is None else doubts / scale
    # Where rounding has chosen other experts, that is doubted, and no error of its own.
    made = [np.maximum(0, _distances(expected, rows) / scale - doubt) for rows in rounded]
    rounding = np.max(made, axis=0) if made else np.zeros(len(expected))
    limit = slack * np.maximum(rounding, max(float(np.median(rounding)), LEAST_ROUNDING))
    sure = limit < UNSURE
    limit = np.minimum(limit + doubt, MOST_DOUBT)
    worst = int(np.where(sure, error / limit, -1).argmax())
    return Closeness(
        cosine=float(cosine[worst]),
        error=float(error[worst]) if sure[worst] else 0.0,
        limit=float(limit[worst]),
        max_error=float(largest[worst]),
        worst=worst,
        unsure=int((~sure).sum()),
        not_finite=int(not_finite.sum()),
    )


def logits_closeness(
    expected: Floats,
    found: NDArray[np.floating[Any]],
    rounded: Sequence[Floats],
    slack: float,
    doubts: Floats | None = None,
) -> Closeness:
    """Compare rows of logits, each less its mean; see `closeness`. `doubts` are shares of a row's norm."""
    wanted = centred(expected)
    if doubts is not None:
        doubts = doubts * np.linalg.norm(wanted, axis=1)
    less_means = [centred(rows) for rows in rounded]
    return closeness(wanted, centred(found.astype(np.float32)), wanted, less_means, slack, doubts)


def _slices(count: int) -> Iterable[slice]:
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, count, ROWS_AT_ONCE))


def centred(rows: Floats) -> Floats:
    """Return rows less their means."""
    less_mean: Floats = rows - rows.mean(axis=1, keepdims=True)
    return less_mean


def _finite(rows: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    return np.where(np.isfinite(rows), rows, 0).astype(np.float64)


def _distances(expected: Floats, rows: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the norm of each row's difference."""
    parts = [_finite(rows[some]) - expected[some] for some in _slices(len(expected))]
    return np.concatenate([np.linalg.norm(part, axis=1) for part in parts])


def _compared(
    expected: Floats, found: NDArray[np.floating[Any]], change: Floats
) -> tuple[NDArray[np.float64], ...]:
    """Return each row's difference, largest difference, cosine, scale, and values that are not finite.

    A row's error is its difference divided by the scale.
    """
    known, wide = _finite(found), expected.astype(np.float64)
    apart, size = known - wide, np.linalg.norm(wide, axis=1)
    difference = np.linalg.norm(apart, axis=1)
    scale = np.linalg.norm(change.astype(np.float64), axis=1) + size * ROUNDING_FLOOR
    product = np.maximum(size * np.linalg.norm(known, axis=1), np.finfo(np.float32).tiny)
    cosine = np.where(difference == 0, 1.0, (known * wide).sum(axis=1) / product)
    not_finite = (~np.isfinite(found)).sum(axis=1).astype(np.float64)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    return difference, np.abs(apart).max(axis=1), cosine, scale, not_finite
