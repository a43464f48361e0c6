"""A verifier of one number per slot, quick enough for the full gate, and faults of few rows.

What a row leaves follows from its token, its position and all that it sees, so every row after one that a
fault touches shows it, as with a real model. A fault touches one row in `rate`, always the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import (
    KVCacheGroupShape,
    Logits,
    PassPlan,
    PassResult,
    Row,
    RowKind,
    RowSlots,
    VerifierShape,
)
from anespec.runtime.sampling.row_logits import row_logits

VOCABULARY = 40
MODULUS = 1021
"""Numbers below it are fp16 numbers, each."""

Touches = Callable[["Fault", Row, int, PassPlan], bool]


@dataclass(frozen=True)
class Fault:
    """Rows whose bits depend on what they must not: a row in a lane of a pass, if `touches` says so.

    `number` is whatever the fault is about: a lane, a width, a span, a region.
    """

    name: str
    touches: Touches
    number: int = 0


def writes(plan: PassPlan) -> int:
    """How many rows of a pass write."""
    return sum(row.kind is not RowKind.PAD for row in plan.rows)


def region_of(row: Row, shape: VerifierShape) -> int:
    """The region of a row where regions stand one behind another or take turns by pages."""
    page = shape.pages[0]
    return row.slots[0].visible[0].start // page % shape.sequences


class NumberVerifier:
    """Implements anespec.runtime.passes.Verifier; with a fault it breaks one promise in a few rows."""

    def __init__(
        self, shape: VerifierShape, fault: Fault | None = None, rate: int = 1, salt: int = 0
    ) -> None:
        self._shape, self.fault, self.rate, self.salt = shape, fault, rate, salt
        self.slots = [np.zeros(whole, np.int64) for whole in shape.whole_spans]
        self.passes = 0
        self.rows_run = 0
        self.passes_by_width: dict[int, int] = {}
        self._found: PassResult = {}

    @property
    def shape(self) -> VerifierShape:
        return self._shape

    def submit(self, plan: PassPlan) -> None:
        self.passes += 1
        self.rows_run += plan.width
        self.passes_by_width[plan.width] = self.passes_by_width.get(plan.width, 0) + 1
        # A row sees what those before it wrote, and rows of one sequence stand in their order.
        values = [self._value(row, lane, plan) for lane, row in enumerate(plan.rows)]
        self._found = {
            lane: row_logits(self._logits(values[lane]), need) for lane, need in plan.wanted.items()
        }

    def wait(self) -> PassResult:
        return self._found

    def _value(self, row: Row, lane: int, plan: PassPlan) -> int:
        seen = 0
        for pool, place in enumerate(row.slots):
            for span in place.visible:
                seen += int(self.slots[pool][span.start : span.stop].sum())
            if place.home is not None:
                seen -= int(self.slots[pool][place.home])
        value = 1 + (row.token * 37 + row.position * 11 + seen * 5) % MODULUS
        if self._is_touched(row, lane, plan):
            value = 1 + value % MODULUS
        for pool, place in enumerate(row.slots):
            if place.home is not None:
                self.slots[pool][place.home] = value
        return value

    def _is_touched(self, row: Row, lane: int, plan: PassPlan) -> bool:
        if self.fault is None or row.kind is RowKind.PAD:
            return False
        if hash((row.token, row.position, self.salt)) % self.rate:
            return False
        return self.fault.touches(self.fault, row, lane, plan)

    def _logits(self, value: int) -> Logits:
        return ((value * np.arange(1, VOCABULARY + 1)) % MODULUS).astype(np.float16)

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        self.slots[pool][target : target + count] = self.slots[pool][source : source + count].copy()

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        return [self.slots[pool][None, None, first : first + count, None].astype(np.float16)]

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        count = values[0].shape[2]
        self.slots[pool][first : first + count] = values[0][0, 0, :, 0].astype(np.int64)

    def close(self) -> None:
        """Nothing to release."""


def number_shape(sequences: int = 4, context: int = 512, t_max: int = 32) -> VerifierShape:
    """Sizes of an artifact as people convert one."""
    widths = tuple(2**i for i in range(t_max.bit_length()) if 2**i <= t_max)
    pools = (KVCacheGroupShape("global", context, None),)
    return VerifierShape(4, widths, context, sequences, VOCABULARY, pools, partial_spans=True)


def _others(row: Row, plan: PassPlan) -> list[Row]:
    return [other for other in plan.rows if other is not row]


SHAPE = number_shape()

LANES = [
    Fault(f"lane {n}", lambda fault, row, lane, plan: plan.width == 4 and lane == fault.number, n)
    for n in (1, 2, 3)
]
NEIGHBOURS = [
    Fault(
        "tokens beside it", lambda fault, row, lane, plan: sum(o.token for o in _others(row, plan)) % 2 == 1
    ),
    Fault(
        "a later row beside it",
        lambda fault, row, lane, plan: any(o.position > row.position for o in _others(row, plan)),
    ),
    Fault(
        "another sequence beside it",
        lambda fault, row, lane, plan: len({region_of(r, SHAPE) for r in plan.rows}) > 1,
    ),
    Fault("the verifier's own pads", lambda fault, row, lane, plan: len(plan.rows) < plan.width == 4),
    Fault(
        "a pad before it", lambda fault, row, lane, plan: any(o.kind is RowKind.PAD for o in plan.rows[:lane])
    ),
]
PARTITION = [
    Fault(
        f"{n} rows that write",
        lambda fault, row, lane, plan: plan.width == 4 and writes(plan) == fault.number,
        n,
    )
    for n in (2, 3, 4)
]
WANTED = [
    Fault(
        "few wanted", lambda fault, row, lane, plan: plan.width == 4 and 0 < len(plan.wanted) < len(plan.rows)
    ),
    Fault("not wanted", lambda fault, row, lane, plan: plan.width == 4 and lane not in plan.wanted),
    Fault("reduced", lambda fault, row, lane, plan: lane in plan.wanted and not plan.wanted[lane].logits),
]


class SeesStale(NumberVerifier):
    """A few rows see the slot behind their own."""

    def _value(self, row: Row, lane: int, plan: PassPlan) -> int:
        touched = row.kind is not RowKind.PAD and not hash((row.token, row.position, self.salt)) % self.rate
        home = row.slots[0].home
        if touched and home is not None and home + 1 < len(self.slots[0]):
            visible = (*row.slots[0].visible, range(home + 1, home + 2))
            row = Row(row.kind, row.token, row.position, (RowSlots(home, visible),))
        return super()._value(row, lane, plan)


class HearsLoud(NumberVerifier):
    """A few rows hear what is far behind them, if it is not zero."""

    def _is_touched(self, row: Row, lane: int, plan: PassPlan) -> bool:
        if row.kind is RowKind.PAD or hash((row.token, row.position, self.salt)) % self.rate:
            return False
        home = row.slots[0].home or 0
        return bool(self.slots[0][home + 2 : plan.spans[0]].any())


class Wavers(NumberVerifier):
    """One pass in `rate` has other bits."""

    def _is_touched(self, row: Row, lane: int, plan: PassPlan) -> bool:
        return hash((self.passes, self.salt)) % self.rate == 0


STATES: Mapping[str, type[NumberVerifier]] = {
    "the slot behind": SeesStale,
    "loud slots": HearsLoud,
    "wavers": Wavers,
}

WIDTHS = [
    Fault(f"width {n}", lambda fault, row, lane, plan: plan.width == fault.number, n)
    for n in SHAPE.widths
    if n != SHAPE.block
]
LAST_LANE = [Fault("the last lane of the widest", lambda fault, row, lane, plan: lane == 31, 32)]
SPANS = [
    Fault(f"span {n}", lambda fault, row, lane, plan: plan.spans[0] == fault.number, n)
    for n in SHAPE.span_steps(0)[:-1]
]
REGIONS = [
    Fault(f"region {n}", lambda fault, row, lane, plan: region_of(row, SHAPE) == fault.number, n)
    for n in (1, 2, 3)
]
