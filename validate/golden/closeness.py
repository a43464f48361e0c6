"""Measure how close rows computed by a shard or by the whole stack are to the reference."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDING_FLOOR = 1 / 256
"""The smallest change that errors are measured by, as a share of a row's norm: a few fp16 roundings of the
residual."""

ROWS_AT_ONCE = 32
"""The rows that are compared in float64 at once; rows of logits are long."""

DOUBT_GROWS = 2.0
"""The factor by which a doubt about a row's experts may grow in later layers."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Closeness:
    """The comparison of rows; `cosine` and `error` are each those of the worst row."""

    cosine: float
    error: float
    max_error: float
    worst: int
    not_finite: int


def closeness(
    expected: Floats, found: NDArray[np.floating[Any]], change: Floats, doubts: Floats | None = None
) -> Closeness:
    """Compare rows of two arrays [rows, channels]; values that are not finite count as zero.

    Errors are divided by the norm of `change` (see GoldenThresholds). `doubts` [rows] are norms of
    differences that other experts would make, which do not count (see Stretch).
    """
    return _worst(
        _some(
            expected[some],
            found[some].astype(np.float64),
            change[some],
            np.zeros(1) if doubts is None else DOUBT_GROWS * doubts[some],
        )
        for some in _slices(len(expected))
    )


TURNS = 1 / 16
"""How far noise moves a row that counts as one that rounding may turn, as a share of the row's change.

Rounding to fp16 moves a row some 30 times less than noise does, unless it turns.
"""

FURTHER = 4
"""How many times as far as noise moved it a row may turn, since few noises are tried."""


def steadied(
    expected: Floats, found: NDArray[np.floating[Any]], moved: Sequence[Floats], change: Floats
) -> NDArray[np.floating[Any]]:
    """Return `found`, with rows that rounding may turn drawn towards `expected` as far as noise moves them.

    `moved` are the rows of references with noise (see Stretch). Only what goes beyond that is an error. Rows
    that noise moves little stay as they are.
    """
    if not moved:
        return found
    size = _norms(change) + _norms(expected) * ROUNDING_FLOOR
    shift = np.max([_norms(each - expected) for each in moved], axis=0)
    difference = found.astype(np.float32) - expected
    with np.errstate(all="ignore"):
        ratio = np.where(shift > TURNS * size, FURTHER * shift, 0) / _norms(difference)
    kept = np.where(np.isfinite(ratio), np.maximum(0, 1 - ratio), 1)
    drawn: Floats = expected + difference * kept.astype(np.float32)
    return np.where(ratio > 0, drawn, found)


def _norms(rows: Floats) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return norms


def logits_closeness(
    expected: Floats, found: NDArray[np.floating[Any]], doubts: Floats | None = None
) -> Closeness:
    """Compare rows of logits, each less its mean; see `closeness`. `doubts` are shares of a row's norm."""
    wanted = centred(expected)
    if doubts is not None:
        doubts = doubts * np.linalg.norm(wanted, axis=1)
    return closeness(wanted, centred(found.astype(np.float32)), wanted, doubts)


def _slices(count: int) -> Iterable[slice]:
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, count, ROWS_AT_ONCE))


def centred(rows: Floats) -> Floats:
    """Return rows less their means."""
    less_mean: Floats = rows - rows.mean(axis=1, keepdims=True)
    return less_mean


def _some(
    expected: Floats,
    found: NDArray[np.floating[Any]],
    change: Floats,
    doubts: NDArray[np.floating[Any]],
) -> tuple[NDArray[np.float64], ...]:
    """Return each row's cosine, error, largest difference and number of values that are not finite."""
    finite = np.isfinite(found)
    found = np.where(finite, found, 0).astype(np.float64)
    wide = expected.astype(np.float64)
    difference = np.linalg.norm(found - wide, axis=1)
    if doubts.any():
        counts = np.maximum(0.0, 1 - doubts / np.maximum(difference, np.finfo(np.float32).tiny))
        found = wide + (found - wide) * counts[:, None]
        difference = difference * counts
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
