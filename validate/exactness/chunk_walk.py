"""Run a case's passes over recurrent layers: cut them where chunks end, fold between them, and record.

A pass has rows of one chunk of each sequence. So a planned pass whose rows cross the end of a chunk becomes
several, in which every row keeps its lane. Wrong drafts behind the end are left out, as the engine drafts
nothing there: the chunk before them would be folded with a wrong row in it.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, Verifier
from anespec.validate.exactness.bit_comparison import States, same_bits
from anespec.validate.exactness.invariance_cases import CasePass, CaseRow, Probe


def chunk_pool(region_map: SlotMapping) -> int | None:
    """Return the index of the pool of chunks; None if there are no recurrent layers."""
    return next((number for number, pool in enumerate(region_map.pools) if pool.is_chunk), None)


def chunk_of_past(region_map: SlotMapping, pool: int, start: int) -> range:
    """Return the positions of the last chunk before `start`, as far as they are before it.

    They are what a row at `start` needs of the past: it sees them, or they are folded before it runs.
    """
    return range(region_map.first_visible(pool, start - 1) if start else 0, start)


def within_chunks(planned: CasePass, region_map: SlotMapping) -> Iterator[CasePass]:
    """Yield a pass as passes of which none has rows of two chunks of one sequence."""
    pool = chunk_pool(region_map)
    left = {lane: row for lane, row in enumerate(planned.rows) if row.kind is not RowKind.PAD}
    count = len(left)
    while left:
        now, left = (left, {}) if pool is None else _first_chunks(left, region_map, pool)
        yield planned if len(now) == count else _with_rows(planned, now)


Rows = dict[int, CaseRow]
"""Rows by lane."""


def _first_chunks(rows: Rows, region_map: SlotMapping, pool: int) -> tuple[Rows, Rows]:
    """Return the rows of each sequence's first chunk, and those behind it that are no wrong drafts."""
    began: dict[int, int] = {}
    now: Rows = {}
    later: Rows = {}
    for lane, row in rows.items():
        chunk = region_map.first_visible(pool, row.position)
        if chunk == began.setdefault(row.region, chunk):
            now[lane] = row
        elif row.recorded or row.kind is not RowKind.DRAFT:
            later[lane] = row
    return now, later


def _with_rows(planned: CasePass, kept: Rows) -> CasePass:
    """Return a pass with only the rows in `kept`, by lane, and pads in place of the others."""
    first = next(iter(kept.values()))
    pad = CaseRow(RowKind.PAD, 0, first.position, first.region)
    rows = tuple(
        row if row.kind is RowKind.PAD else kept.get(lane, pad) for lane, row in enumerate(planned.rows)
    )
    wanted = planned.wanted
    if wanted is not None:
        gone = {lane for lane, row in enumerate(planned.rows) if row.kind is not RowKind.PAD} - {*kept}
        wanted = {lane: need for lane, need in wanted.items() if lane not in gone}
    return replace(planned, rows=rows, wanted=wanted)


class ChunkWalk:
    """The chunks of one case: folds them, and records the rows and carried states of the probe's region.

    `rows` has the rows in chunk slots by position, `carried` the carried states by the position at which they
    stand, `problems` descriptions of folds that did nothing. The past of the probe must be laid.
    """

    def __init__(
        self, verifier: Verifier, region_map: SlotMapping, pool: int, probe: Probe, region: int
    ) -> None:
        self._verifier, self._map, self._pool = verifier, region_map, pool
        self._probe, self._region = probe, region
        self._stands = {region: chunk_of_past(region_map, pool, probe.start).start}
        self.rows: dict[int, States] = {}
        self.carried: dict[int, States] = {}
        self.problems: list[str] = []

    def begin(self, planned: CasePass) -> None:
        """Prepare the carried states for the rows of a pass that is within chunks."""
        first: dict[int, int] = {}
        for row in planned.rows:
            if row.kind is not RowKind.PAD:
                first.setdefault(row.region, row.position)
        for region, position in first.items():
            self._begin(region, position)

    def end(self) -> None:
        """Record the last chunk."""
        self._record(self._probe.positions.stop)
        self.carried[self._stands[self._region]] = self._state(self._region)

    def _begin(self, region: int, position: int) -> None:
        start = self._map.first_visible(self._pool, position)
        if position == 0:
            self._verifier.clear_carried(region)
            if any(value.any() for value in self._state(region)):
                self.problems.append(f"the carried state of region {region} is not zero after it was cleared")
        elif self._stands.get(region) != start:
            if region == self._region:
                self._record(start)
            before = self._state(region)
            self._verifier.fold(region)
            after = self._state(region)
            # The past is one chunk over and over, which folds to the same again if decays are fast.
            is_new = region != self._region or start > self._probe.start
            if is_new and any(same_bits(old, new) for old, new in zip(before, after, strict=True)):
                self.problems.append(f"the fold before position {start} left a carried state as it was")
            if region == self._region:
                self.carried[start] = after
        self._stands[region] = start

    def _record(self, end: int) -> None:
        """Record the rows of the probe in the chunk whose last row that was run is before `end`."""
        first = max(self._probe.start, self._map.first_visible(self._pool, end - 1))
        for position in range(first, end):
            slot = self._map.slot(self._pool, self._region, position)
            found = self._verifier.export_slots(self._pool, slot, 1)
            self.rows[position] = tuple(np.array(values[:, :, 0]) for values in found)

    def _state(self, region: int) -> tuple[NDArray[np.float16], ...]:
        return tuple(self._verifier.export_carried(region))
