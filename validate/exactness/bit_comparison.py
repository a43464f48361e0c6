"""Compare the results of two runs of the same tokens bit by bit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import Logits, LogitsRequest, RowLogits
from anespec.runtime.sampling.row_logits import row_logits

States = tuple[NDArray[np.float16], ...]
"""The K/V of one position: an array per state of every pool."""


@dataclass(frozen=True)
class FoundRow:
    """The results of a row in a pass, and the request for them."""

    need: LogitsRequest
    found: RowLogits

    @property
    def is_finite(self) -> bool:
        """Return whether all numbers found are finite."""
        numbers = [candidate.logit for candidate in self.found.top]
        numbers += [self.found.best.logit] if self.found.best is not None else []
        logits = self.found.logits
        return all(map(math.isfinite, (*numbers, *self.found.chosen))) and (
            logits is None or is_finite(logits)
        )


@dataclass(frozen=True)
class Recording:
    """The results of a case: rows and K/V bits by position, and descriptions of problems, such as values that
    are not finite.

    `states` lacks a position whose home slot in a ring was reused by a later position. `chunk_rows` has the
    rows of recurrent layers by position, `carried` their carried states by the position where they stood.
    """

    rows: Mapping[int, FoundRow]
    states: Mapping[int, States]
    problems: tuple[str, ...] = ()
    chunk_rows: Mapping[int, States] = field(default_factory=dict)
    carried: Mapping[int, States] = field(default_factory=dict)

    def followed_by(self, later: "Recording") -> "Recording":
        """Return this recording together with a later one of further positions."""
        return Recording(
            {**self.rows, **later.rows},
            {**self.states, **later.states},
            (*self.problems, *later.problems),
            {**self.chunk_rows, **later.chunk_rows},
            {**self.carried, **later.carried},
        )


@dataclass(frozen=True)
class Difference:
    """The result of a comparison: `unequal` of `cases` comparisons differ in some bit.

    `largest` is the largest difference of logits, `first` describes the first one.
    """

    cases: int = 0
    unequal: int = 0
    largest: float = 0.0
    first: str = ""

    def __add__(self, other: "Difference") -> "Difference":
        return Difference(
            self.cases + other.cases,
            self.unequal + other.unequal,
            max(self.largest, other.largest),
            self.first or other.first,
        )

    @property
    def equal(self) -> bool:
        """Return whether something was compared and nothing differed."""
        return self.cases > 0 and self.unequal == 0


def compare(expected: Recording, found: Recording, name: str) -> Difference:
    """Compare all positions that both recordings hold, bit by bit.

    A value that is not finite counts as unequal. The rows of `expected` must have all logits, whatever the
    rows of `found` were requested with.
    """
    total = Difference()
    for what, mine, theirs in (
        ("K/V", expected.states, found.states),
        ("chunk's", expected.chunk_rows, found.chunk_rows),
        ("carried", expected.carried, found.carried),
    ):
        for position, states in mine.items():
            total += _compare_states(states, theirs.get(position), position, f"{name}: the {what}")
    for position, row in expected.rows.items():
        other = found.rows.get(position)
        if other is not None:
            total += _compare_rows(row, other, position, name)
    for problem in (*expected.problems, *found.problems):
        total += Difference(1, 1, 0.0, f"{name}: {problem}")
    return total


def is_finite(values: NDArray[np.float16]) -> bool:
    """Return whether all fp16 values are finite; reads only the exponent bits, which is fast."""
    return not bool(((_bits(values) & 0x7C00) == 0x7C00).any())


def same_bits(a: NDArray[np.float16], b: NDArray[np.float16]) -> bool:
    """Return whether two fp16 arrays agree in every bit, the sign of zero included."""
    return bool(np.array_equal(_bits(a), _bits(b)))


def _bits(values: NDArray[np.float16]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(values, dtype=np.float16).view(np.uint16)


def _compare_rows(expected: FoundRow, found: FoundRow, position: int, name: str) -> Difference:
    """Compare logits with logits, and reduced results with the reduction of the expected logits."""
    logits, other = expected.found.logits, found.found.logits
    if logits is None:
        return Difference(1, 1, 0.0, f"{name}: the verifier returned no logits at position {position}")
    total = Difference()
    need = found.need
    if need.logits:
        total += _compare_logits(logits, other, position, name)
    if need.best or need.top or need.chosen:
        right = row_logits(logits, need)
        same = (right.best, right.top, right.chosen) == (
            found.found.best,
            found.found.top,
            found.found.chosen,
        )
        what = "" if same else f"{name}: position {position} has different top or chosen logits"
        total += Difference(1, int(not same), 0.0, what)
    return total


def _compare_logits(a: Logits, b: Logits | None, position: int, name: str) -> Difference:
    if b is None:
        return Difference(1, 1, 0.0, f"{name}: the verifier returned no logits at position {position}")
    if same_bits(a, b):
        return Difference(cases=1)
    gap = np.abs(np.nan_to_num(a.astype(np.float32)) - np.nan_to_num(b.astype(np.float32)))
    differing = int((_bits(a) != _bits(b)).sum())
    largest = float(gap.max())
    what = f"{name}: {differing} of {a.size} logits at position {position} differ, by up to {largest:.4g}"
    return Difference(1, 1, largest, what)


def _compare_states(a: States, b: States | None, position: int, what: str) -> Difference:
    if b is None:
        return Difference()
    if all(same_bits(x, y) for x, y in zip(a, b, strict=True)):
        return Difference(cases=1)
    return Difference(1, 1, 0.0, f"{what} bits at position {position} differ")
