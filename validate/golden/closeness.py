"""Measure how close rows computed by a shard or by the whole stack are to the reference."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDING_FLOOR = 1 / 256
"""The smallest change that errors are measured by, as a share of a row's norm: a few fp16 roundings of the
residual."""

ROWS_AT_ONCE = 32
"""The rows that are compared in float64 at once; rows of logits are long."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Closeness:
    """The comparison of rows; `cosine` and `error` are each those of the worst row."""

    cosine: float
    error: float
    max_error: float
    worst: int
    not_finite: int


def closeness(expected: Floats, found: NDArray[np.floating[Any]], change: Floats) -> Closeness:
    """Compare rows of two arrays [rows, channels]; values that are not finite count as zero.

    Errors are divided by the norm of `change` (see GoldenThresholds).
    """
    return _worst(
        _some(expected[some], found[some].astype(np.float64), change[some]) for some in _slices(len(expected))
    )


def logits_closeness(expected: Floats, found: NDArray[np.floating[Any]]) -> Closeness:
    """Compare rows of logits, each less its mean; see `closeness`."""
    return _worst(
        _some(_centred(expected[some]), _centred(found[some].astype(np.float32)), _centred(expected[some]))
        for some in _slices(len(expected))
    )


def _slices(count: int) -> Iterable[slice]:
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, count, ROWS_AT_ONCE))


def _centred(rows: Floats) -> Floats:
    centred: Floats = rows - rows.mean(axis=1, keepdims=True)
    return centred


def _some(
    expected: Floats, found: NDArray[np.floating[Any]], change: Floats
) -> tuple[NDArray[np.float64], ...]:
    """Return each row's cosine, error, largest difference and number of values that are not finite."""
    finite = np.isfinite(found)
    found = np.where(finite, found, 0).astype(np.float64)
    wide = expected.astype(np.float64)
    difference = np.linalg.norm(found - wide, axis=1)
    size = np.linalg.norm(wide, axis=1)
    scale = np.linalg.norm(change.astype(np.float64), axis=1) + size * ROUNDING_FLOOR
    error = difference / np.maximum(scale, np.finfo(np.float32).tiny)
    product = np.maximum(size * np.linalg.norm(found, axis=1), np.finfo(np.float32).tiny)
    cosine = np.where(difference == 0, 1.0, (found * wide).sum(axis=1) / product)
    return cosine, error, np.abs(found - wide).max(axis=1), (~finite).sum(axis=1).astype(np.float64)


def _worst(parts: Iterable[tuple[NDArray[np.float64], ...]]) -> Closeness:
    cosine, error, largest, not_finite = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Closeness(
        cosine=float(cosine.min()),
        error=float(error.max()),
        max_error=float(largest.max()),
        worst=int(error.argmax()),
        not_finite=int(not_finite.sum()),
    )
