"""Run invariance cases on a verifier: fill the past, record what a case leaves, fill stale slots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, RowLogits, Verifier, run_pass, whole_plan
from anespec.runtime.rows import chain_rows
from anespec.validate.exactness.bit_comparison import FoundRow, Recording, States, is_finite
from anespec.validate.exactness.chunk_walk import ChunkWalk, chunk_of_past, chunk_pool, within_chunks
from anespec.validate.exactness.invariance_cases import InvarianceCase, Probe, side_by_side

SLOTS_AT_ONCE = 4096
"""The most slots that are exported or imported in one call, which bounds the memory of a check."""

SLOTS_OF_NOISE = 256
"""The number of slots of loud values that are generated; more slots repeat them."""

FP16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class _Excerpt:
    """The K/V of some slots of one pool, as `export_slots` returned it."""

    pool: int
    first: int
    values: Sequence[NDArray[np.float16]]


class CaseRunner:
    """Prepares a past on a verifier, runs cases on it, records them, and cleans up.

    No other code may use the verifier's state meanwhile; `clear` resets it to zeros.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.shape = verifier.shape
        self.map = SlotMapping.of(self.shape)
        self._pools = range(len(self.shape.pools))
        self._one_slot = [verifier.export_slots(pool, 0, 1) for pool in self._pools]
        self._chunk = chunk_pool(self.map)
        self._untouched: list[_Excerpt] = []
        self._untouched_carried: tuple[int, Sequence[NDArray[np.float16]]] | None = None
        self._computed: dict[tuple[tuple[int, ...], int], list[_Excerpt]] = {}

    def clear(self) -> None:
        """Zero every slot of every pool, and all carried states."""
        for pool, first, count in self._all_slots():
            shapes = [(one.shape[0], one.shape[1], count, one.shape[3]) for one in self._one_slot[pool]]
            self.verifier.import_slots(pool, first, [np.zeros(shape, np.float16) for shape in shapes])
        for region in self._carrying:
            zeros = [np.zeros_like(values) for values in self.verifier.export_carried(region)]
            self.verifier.import_carried(region, zeros)

    def prepare(self, probe: Probe, region: int = 0) -> None:
        """Clear everything, then call `lay_past` and `keep`."""
        self.clear()
        self.lay_past(probe, region)
        self.keep(probe, region)

    def lay_past(self, probe: Probe, region: int = 0) -> None:
        """Fill positions 0..start-1 of a region; all other slots stay as they are.

        `past` is run in whole blocks the first time that it is used in a region. Its K/V is repeated up to
        `start`. With recurrent layers no more than a chunk of it is run. Its rows are repeated over a chunk,
        which is folded: so the carried state is that of a text, and the chunk before `start` is whole.
        """
        past = probe.past[: min(probe.start, self.shape.chunk or probe.start)]
        if (past, region) not in self._computed:
            self._computed[past, region] = self._compute_past(past, region)
        for excerpt in self._computed[past, region]:
            self.verifier.import_slots(excerpt.pool, excerpt.first, excerpt.values)
        if past:
            for pool in self._pools:
                if pool == self._chunk:
                    self._tile_chunk(pool, region, len(past))
                else:
                    self._tile_past(pool, region, len(past), probe.start)

    def _compute_past(self, past: tuple[int, ...], region: int) -> list[_Excerpt]:
        """Run the first tokens of a region on slots of zeros, and return their K/V."""
        width = self.shape.block
        if self._chunk is not None:
            self.verifier.clear_carried(region)
        for run in self.map.runs(range(len(past)), width):
            rows = chain_rows(self.map, region, run.start, RowKind.PROMPT, past[run.start : run.stop])
            run_pass(self.verifier, whole_plan(self.shape, rows, width=width, wants_logits=False))
        return [
            self._excerpt(pool, span.start, len(span))
            for pool, shape in enumerate(self.shape.pools)
            for span in self.map.slot_ranges(pool, region, range(min(len(past), shape.token_slots)))
        ]

    def _excerpt(self, pool: int, first: int, count: int) -> _Excerpt:
        return _Excerpt(pool, first, self.verifier.export_slots(pool, first, count))

    def _tile_past(self, pool: int, region: int, filled: int, wanted: int) -> None:
        """Repeat the K/V of the first `filled` positions up to position `wanted`."""
        wanted = min(wanted, self.shape.pools[pool].token_slots)
        if wanted <= filled:
            return
        real = self._positions(pool, region, range(filled))
        position = filled
        for span in self.map.slot_ranges(pool, region, range(filled, wanted)):
            sources = np.arange(position, position + len(span)) % filled
            self.verifier.import_slots(pool, span.start, [values[:, :, sources] for values in real])
            position += len(span)

    def _tile_chunk(self, pool: int, region: int, filled: int) -> None:
        """Repeat the rows of the first `filled` positions over a region's chunk, and fold it from zeros."""
        self._tile_past(pool, region, filled, self.shape.pools[pool].region_slots)
        self.verifier.clear_carried(region)
        self.verifier.fold(region)

    def keep(self, probe: Probe, region: int = 0) -> None:
        """Save the slots that cases of the probe may write, for `restore`."""
        self._untouched = [
            self._excerpt(pool, span.start, len(span))
            for pool in self._pools
            for span in self._touchable(pool, probe, region)
        ]
        if self._chunk is not None:
            self._untouched_carried = region, self.verifier.export_carried(region)

    def restore(self) -> None:
        """Restore the slots that were saved by the last `keep`."""
        for excerpt in self._untouched:
            self.verifier.import_slots(excerpt.pool, excerpt.first, excerpt.values)
        self._restore_carried()

    def _restore_carried(self) -> None:
        if self._untouched_carried is not None:
            self.verifier.import_carried(*self._untouched_carried)

    def restore_past(self, probe: Probe, region: int = 0) -> None:
        """Restore only the saved slots that belong to the past that the probe's first row sees.

        A long probe reuses the slots of a ring and so overwrites its own past. The engine never goes back
        that far.
        """
        for excerpt in self._untouched:
            for span in self._past_in_sight(excerpt.pool, probe, region):
                first = max(span.start, excerpt.first)
                count = min(span.stop, excerpt.first + excerpt.values[0].shape[2]) - first
                if count > 0:
                    kept = slice(first - excerpt.first, first - excerpt.first + count)
                    values = [values[:, :, kept] for values in excerpt.values]
                    self.verifier.import_slots(excerpt.pool, first, values)
        self._restore_carried()

    def copy_past(self, probe: Probe, source: int, target: int) -> None:
        """Copy the K/V of positions 0..start-1 from one region to another."""
        for pool in self._pools:
            held = range(min(probe.start, self.shape.pools[pool].token_slots))
            for there, here in zip(
                self.map.slot_ranges(pool, source, held),
                self.map.slot_ranges(pool, target, held),
                strict=True,
            ):
                self.verifier.copy_slots(pool, there.start, here.start, len(there))
        if self._chunk is not None:
            # The target may hold the same state already, which would hide that nothing is copied.
            other = [-values for values in self.verifier.export_carried(source)]
            self.verifier.import_carried(target, other)
            self.verifier.copy_carried(source, target)

    def lay(self, recording: Recording, end: int, region: int = 0) -> None:
        """Write what a recording has of positions before `end` to their slots in a region.

        The carried state is that of the chunk before `end`. Slots that the recording has of later positions
        are written too.
        """
        for position, arrays in sorted(recording.states.items()):
            left = list(arrays)
            for pool in self._slotted:
                mine = [left.pop(0)[:, :, None] for _ in self._one_slot[pool]]
                self.verifier.import_slots(pool, self.map.slot(pool, region, position), mine)
        if self._chunk is None:
            return
        chunk = chunk_of_past(self.map, self._chunk, end)
        for position in chunk:
            if (rows := recording.chunk_rows.get(position)) is not None:
                slot = self.map.slot(self._chunk, region, position)
                self.verifier.import_slots(self._chunk, slot, [row[:, :, None] for row in rows])
        if (carried := recording.carried.get(chunk.start)) is not None:
            self.verifier.import_carried(region, carried)

    def run(self, case: InvarianceCase, probe: Probe, region: int = 0) -> Recording:
        """Run every pass of `case` and record the probe's positions in `region`."""
        rows: dict[int, FoundRow] = {}
        problems: list[str] = []
        passes = tuple(part for planned in case.passes for part in within_chunks(planned, self.map))
        walk = None
        if self._chunk is not None:
            walk = ChunkWalk(self.verifier, self.map, self._chunk, probe, region)
        if self.shape.side_by_side:
            passes = tuple(part for planned in passes for part in side_by_side(planned, self.map))
        for number, planned in enumerate(passes):
            if walk is not None:
                walk.begin(planned)
            plan = planned.plan(self.shape, self.map)
            for lane, found in run_pass(self.verifier, plan).items():
                row, recorded = planned.rows[lane], FoundRow(plan.wanted[lane], _copied(found))
                if not recorded.is_finite:
                    problems.append(
                        f"a logit of the {row.kind} row in lane {lane} of pass {number} is not finite"
                    )
                if row.recorded:
                    rows[row.position] = recorded
        states = self._home_states(probe.positions, region)
        for position, arrays in states.items():
            if not all(is_finite(array) for array in arrays):
                problems.append(f"the K/V of position {position} is not finite")
        if walk is None:
            return Recording(rows, states, tuple(problems))
        walk.end()
        problems += walk.problems
        for what, found_at in (("chunk's row", walk.rows), ("carried state", walk.carried)):
            for position, arrays in found_at.items():
                if not all(is_finite(array) for array in arrays):
                    problems.append(f"the {what} at position {position} is not finite")
        return Recording(rows, states, tuple(problems), walk.rows, walk.carried)

    def not_finite_slot(self) -> str:
        """Describe the first slot of any pool with a value that is not finite; return "" if there is none."""
        for pool, first, count in self._all_slots():
            for array in self.verifier.export_slots(pool, first, count):
                if not is_finite(array):
                    slot = first + int((~np.isfinite(array)).any(axis=(0, 1, 3)).argmax())
                    return (
                        f"slot {slot} of pool {self.shape.pools[pool].name} holds a value that is not finite"
                    )
        for region in self._carrying:
            if not all(is_finite(values) for values in self.verifier.export_carried(region)):
                return f"the carried state of region {region} holds a value that is not finite"
        return ""

    def fill_stale(self, probe: Probe, rng: np.random.Generator) -> None:
        """Fill every slot but those of the past that the probe's first row, in region 0, sees.

        So are the carried states, except that of region 0 if it belongs to the past.
        """
        for pool in self._pools:
            kept = self._past_in_sight(pool, probe, 0)
            slots = np.setdiff1d(np.arange(self.shape.whole_spans[pool]), np.concatenate([[], *kept]))
            self.fill(pool, slots, rng, max(probe.start, 1))
        for region in self._carrying:
            if region or not probe.start:
                values = self.verifier.export_carried(0)
                self.verifier.import_carried(region, [_loud(held, held.shape, rng) for held in values])

    def fill(self, pool: int, slots: NDArray[np.int64], rng: np.random.Generator, real: int) -> None:
        """Fill ascending slots with loud K/V made from the first `real` positions of region 0.

        Each value is one of the same state, taken from a random place, with a random sign and scaled by up to
        2. Rejected drafts and finished sequences leave nothing that loud. Louder values could overflow a
        masked score in fp16, which values in use cannot.
        """
        count = min(real, self.shape.pools[pool].token_slots, SLOTS_OF_NOISE)
        noise = [_louder(values, rng) for values in self._positions(pool, 0, range(count))]
        for run in np.split(slots, np.flatnonzero(np.diff(slots) != 1) + 1) if len(slots) else ():
            for some in np.split(run, range(SLOTS_AT_ONCE, len(run), SLOTS_AT_ONCE)):
                values = [tile[:, :, some % SLOTS_OF_NOISE] for tile in noise]
                self.verifier.import_slots(pool, int(some[0]), values)

    def _positions(self, pool: int, region: int, positions: range) -> list[NDArray[np.float16]]:
        """Return the K/V of consecutive positions, one array [1, n_kv, positions, head_dim] per state."""
        spans = self.map.slot_ranges(pool, region, positions)
        pieces = [self.verifier.export_slots(pool, span.start, len(span)) for span in spans]
        return [np.concatenate(parts, axis=2) for parts in zip(*pieces, strict=True)]

    def _past_in_sight(self, pool: int, probe: Probe, region: int) -> tuple[range, ...]:
        """Return the slots of the past that the probe's first row sees, or that are folded before it."""
        if pool == self._chunk:
            return self.map.slot_ranges(pool, region, chunk_of_past(self.map, pool, probe.start))
        visible = range(self.map.first_visible(pool, probe.start), probe.start)
        return self.map.slot_ranges(pool, region, visible)

    def _touchable(self, pool: int, probe: Probe, region: int) -> tuple[range, ...]:
        """Return the slots that the probe's rows, or drafts and pads past its end, may write."""
        size = self.shape.pools[pool].token_slots
        end = min(probe.positions.stop + self._rows_past_the_end, self.shape.context)
        if end - probe.start >= size or pool == self._chunk:
            return self.map.slot_ranges(pool, region, range(size))
        return self.map.slot_ranges(pool, region, range(probe.start, end))

    def _home_states(self, positions: range, region: int) -> dict[int, States]:
        """Return the K/V of those positions whose home slots were not reused; the pool of chunks is left
        out."""
        rings = [self.shape.pools[pool].token_slots for pool in self._slotted]
        rings = [slots - self._rows_past_the_end + 1 for slots in rings if slots < self.shape.context]
        reach = min((self.shape.context, *rings))
        kept = range(max(positions.start, positions.stop - reach), positions.stop)
        arrays: list[NDArray[np.float16]] = []
        for pool in self._slotted:
            arrays += self._positions(pool, region, kept)
        return {position: tuple(a[:, :, i] for a in arrays) for i, position in enumerate(kept)}

    @property
    def _slotted(self) -> list[int]:
        """The pools other than that of chunks, whose slots are reused all the time."""
        return [pool for pool in self._pools if pool != self._chunk]

    @property
    def _carrying(self) -> range:
        """The regions that have a carried state."""
        return range(self.shape.sequences if self._chunk is not None else 0)

    @property
    def _rows_past_the_end(self) -> int:
        """Return the most rows that a case writes behind a probe: drafts, or pads if pads write."""
        return self.shape.t_max if self.shape.side_by_side else self.shape.block

    def _all_slots(self) -> Iterator[tuple[int, int, int]]:
        """Yield all slots as (pool, first, count), at most SLOTS_AT_ONCE at a time."""
        for pool, slots in enumerate(self.shape.whole_spans):
            for first in range(0, slots, SLOTS_AT_ONCE):
                yield pool, first, min(SLOTS_AT_ONCE, slots - first)


def _copied(found: RowLogits) -> RowLogits:
    """Return a copy that does not keep the logits of other rows in memory."""
    return found if found.logits is None else replace(found, logits=np.array(found.logits, np.float16))


def _louder(real: NDArray[np.float16], rng: np.random.Generator) -> NDArray[np.float16]:
    """Return values of `real` [n, n_kv, count, head_dim], shuffled and scaled, for SLOTS_OF_NOISE slots."""
    return _loud(real, (real.shape[0], real.shape[1], SLOTS_OF_NOISE, real.shape[3]), rng)


def _loud(real: NDArray[np.float16], shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float16]:
    """Return values of `real`, shuffled and scaled, in another shape."""
    noise = rng.choice(real.ravel(), size=shape).astype(np.float32) * rng.uniform(-2, 2, size=shape)
    noise = np.clip(noise, -FP16_MAX, FP16_MAX)
    return np.where(noise == 0, 1.0, noise).astype(np.float16)
