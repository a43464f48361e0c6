"""Build the inputs of a pass from its rows: rope rows, and masks or slot numbers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.schema import HIDDEN_IN, KVCacheGroup, Manifest, RopeTable
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.runtime.passes import Row
from anespec.system.errors import ArtifactError


def homes_of(written: Tensor | Homes) -> Homes:
    """Return the slots that the lanes write, from a write mask or from the slot numbers themselves.

    Raises:
        ValueError: no lane writes a slot, two lanes write the same one, or a lane writes several.
    """
    homes = _homes_of_mask(written) if written.ndim > 1 else written.astype(np.int32)
    taken = homes[homes >= 0]
    if not taken.size or np.unique(taken).size < taken.size:
        raise ValueError("a write mask must write at least one slot, and no two rows may write the same one")
    return homes


def first_slots(shape: Sequence[int]) -> Tensor | Homes:
    """Return an input of this shape by which row t writes slot t: slot numbers [T], or a write mask
    [1, 1, span, T]."""
    if len(shape) == 1:
        return np.arange(*shape, dtype=np.int32)
    rows = np.arange(min(shape[-2:]))
    mask = np.zeros(shape, np.float16)
    mask[..., rows, rows] = 1
    return mask


def first_places(shape: Sequence[int]) -> Tensor:
    """Return the places [1, regions, T, C] of rows that write as with `first_slots` (see ChunkPlaces)."""
    places = np.zeros(shape, np.float16)
    _, regions, rows, size = shape
    for row in range(min(rows, regions * size)):
        places[0, row // size, row, row % size] = 1
    return places


def side_by_side(homes: Homes) -> Homes:
    """Return the consecutive slots that all lanes write from the slot of lane 0 on.

    Pads (-1 in `homes`) write the slots after the last row's.

    Raises:
        ValueError: lane 0 writes no slot, or a row's slot does not follow that of the lane before it.
    """
    slots: Homes = (homes[0] + np.arange(len(homes))).astype(np.int32)
    if homes[0] < 0 or ((homes >= 0) & (homes != slots)).any():
        raise ValueError(f"the slots {homes.tolist()} are not consecutive from lane 0 on")
    return slots


def _homes_of_mask(mask: NDArray[Any]) -> Homes:
    slots, lanes = np.nonzero(mask[0, 0])
    if np.unique(lanes).size < lanes.size or (mask[0, 0, slots, lanes] != 1).any():
        raise ValueError("each column of a write mask must be one-hot or zero")
    homes = np.full(mask.shape[3], -1, np.int32)
    homes[lanes] = slots
    return homes


# The masks of one pool are kept from pass to pass, so that only the changed entries are written.

MASKED = np.float16(-(2**15))
"""The mask's value for a slot that a row does not see: half of fp16's range.

A hidden slot must lose to every score that a row sees, and its own score plus the mask must stay finite,
since minus infinity would give NaN on some hardware. With half of the range both hold for scores within
32,000 of each other, and exp of the difference is exactly 0.
"""

Visible = tuple[range, ...]
"""Ranges of consecutive slots; they may overlap."""


class AttentionMask:
    """The input attn_mask [1, 1, T, span]: 0 where a row attends to a slot, else MASKED."""

    def __init__(self, place: Tensor | None = None) -> None:
        """Keep the mask in `place`, which must have the shape of every pass's mask; None: in an own array."""
        self._mask = np.empty((1, 1, 0, 0), np.float16) if place is None else place
        self._seen: list[Visible] = []

    def of(self, visible: list[Visible], span: int) -> Tensor:
        """Return the mask of rows that see these slots, all below `span`; valid until the next call."""
        if self._mask.shape[2:] != (len(visible), span):
            self._mask = np.empty((1, 1, len(visible), span), np.float16)
            self._seen = []
        if not self._seen:
            self._mask[...] = MASKED
            self._seen = [()] * len(visible)
        for lane, (before, now) in enumerate(zip(self._seen, visible, strict=True)):
            if before != now:
                _change(self._mask[0, 0, lane], before, now)
        self._seen = visible
        return self._mask


class WriteMask:
    """The input kv_write_mask [1, 1, span, T].

    Column t is one-hot at the slot that row t writes, or zero if it writes none.
    """

    def __init__(self, place: Tensor | None = None) -> None:
        """Keep the mask in `place`; see AttentionMask."""
        self._mask = np.empty((1, 1, 0, 0), np.float16) if place is None else place
        self._written: Homes | None = None

    def of(self, homes: Homes, span: int) -> Tensor:
        """Return the mask of lanes that write these slots, all below `span`; valid until the next call."""
        if self._mask.shape[2:] != (span, len(homes)):
            self._mask = np.empty((1, 1, span, len(homes)), np.float16)
            self._written = None
        if self._written is None:
            self._mask[...] = 0
            self._written = np.full(len(homes), -1, np.int32)
        for slots, value in ((self._written, 0), (homes, 1)):
            lanes = np.flatnonzero(slots >= 0)
            self._mask[0, 0, slots[lanes], lanes] = value
        self._written = homes
        return self._mask


class Taps:
    """The input of a pool that is read by taps, [1, window, T, span].

    Entry i of row t is one-hot at the slot of the position that is window - 1 - i before the row's own, or
    zero if the row does not see it. Pads see nothing.
    """

    def __init__(self, window: int, place: Tensor | None = None) -> None:
        """Keep the taps in `place`; see AttentionMask."""
        self._window = window
        self._taps = np.empty((1, window, 0, 0), np.float16) if place is None else place
        self._seen: Homes | None = None

    def of(self, visible: list[Visible], homes: Homes, span: int) -> Tensor:
        """Return the taps of rows that see these slots, oldest first, the last `window` of them.

        All slots are below `span`; lanes without a home are pads. Valid until the next call.
        """
        width, window = len(visible), self._window
        if self._taps.shape[2:] != (width, span):
            self._taps = np.empty((1, window, width, span), np.float16)
            self._seen = None
        if self._seen is None:
            self._taps[...] = 0
            self._seen = np.full((window, width), -1, np.int32)
        seen = np.full((window, width), -1, np.int32)
        for lane in np.flatnonzero(homes >= 0):
            slots = [slot for run in visible[lane] for slot in run][-window:]
            seen[window - len(slots) :, lane] = slots
        for found, value in ((self._seen, 0), (seen, 1)):
            entries, lanes = np.nonzero(found >= 0)
            self._taps[0, entries, lanes, found[entries, lanes]] = value
        self._seen = seen
        return self._taps


class ChunkPlaces:
    """The two inputs by which the rows of a pass read a pool of chunks (see manifests.states.KVCacheGroup).

    In places [1, regions, T, C] row t is one-hot at its region and at its place in the chunk, or zero if it
    is a pad. In live [1, regions x C] the slots of each region with rows in the pass are 1, from the
    first one up to that of its last row; all other slots are 0, so that nothing that they hold is ever read.
    """

    def __init__(self, pool: KVCacheGroup, places: Tensor | None = None, live: Tensor | None = None) -> None:
        """Keep the inputs in `places` and `live`; see AttentionMask."""
        self._size = pool.region_slots
        self._regions = pool.slots // pool.region_slots
        self._places = np.empty((1, self._regions, 0, self._size), np.float16) if places is None else places
        self._live = np.empty((1, pool.slots), np.float16) if live is None else live

    def of(self, homes: Homes) -> tuple[Tensor, Tensor]:
        """Return places and live of lanes that write these slots; valid until the next call."""
        if self._places.shape[2] != len(homes):
            self._places = np.empty((1, self._regions, len(homes), self._size), np.float16)
        self._places[...] = 0
        self._live[...] = 0
        for lane in np.flatnonzero(homes >= 0):
            region, place = divmod(int(homes[lane]), self._size)
            self._places[0, region, lane, place] = 1
            self._live[..., region * self._size : region * self._size + place + 1] = 1
        return self._places, self._live


def _change(mask: NDArray[np.float16], before: Visible, now: Visible) -> None:
    """Change a row's mask [span] from `before` to `now`, in place, and write only the ranges that differ.

    Most ranges are pages of a long text and stay. They matter only if a range that changes overlaps them.
    """
    stays = set(before) & set(now)
    differing = [slots for slots in (*before, *now) if slots not in stays]
    touched = [slots for slots in stays if any(_overlap(slots, other) for other in differing)]
    was = [*touched, *(slots for slots in before if slots not in stays)]
    seen = [*touched, *(slots for slots in now if slots not in stays)]
    ends = {end for slots in differing + touched if slots for end in (slots.start, slots.stop)}
    for first, end in pairwise(sorted(ends)):
        if (is_seen := _holds(seen, first)) != _holds(was, first):
            mask[first:end] = 0 if is_seen else MASKED


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def _holds(visible: Sequence[range], slot: int) -> bool:
    return any(slot in slots for slots in visible)


Seen = AttentionMask | Taps | ChunkPlaces
"""What makes the inputs by which rows read a pool."""

NO_INPUTS: Mapping[str, Tensor] = MappingProxyType({})
NO_PLACED: Mapping[str, NDArray[Any]] = MappingProxyType({})
NO_PLACES: Mapping[int, Mapping[str, NDArray[Any]]] = MappingProxyType({})


class PassInputs:
    """Builds a pass's inputs, by the manifest's names. Rope rows are computed once for all positions.

    With `homes` the slots that rows write are given as numbers, without it as one-hot masks. If a pass writes
    consecutive slots, they are always numbers, for pads too. Masks are kept from pass to pass and changed
    only where rows differ, so the arrays that `of` returns are valid until its next call.

    `places` has preallocated arrays for the inputs, by T and then by name, such as shared memory. Masks in
    them cover all slots. Inputs without a place get arrays of their own.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        homes: bool = False,
        places: Mapping[int, Mapping[str, NDArray[Any]]] = NO_PLACES,
    ) -> None:
        self.pools = manifest.pools
        self.rope_rows = {
            table.cos_input: _rope_rows(table, manifest.context, np.cos) for table in manifest.ropes
        } | {table.sin_input: _rope_rows(table, manifest.context, np.sin) for table in manifest.ropes}
        self.context = manifest.context
        self._homes = homes
        self._form = manifest.kv_form
        self._places = places
        self._masks: dict[int, list[tuple[Seen, WriteMask]]] = {}

    def of(
        self,
        rows: Sequence[Row],
        hidden: Tensor,
        layer_inputs: Mapping[str, Tensor] = NO_INPUTS,
        spans: Sequence[int] | None = None,
    ) -> dict[str, Tensor | Homes]:
        """Return all inputs of a layer shard: `hidden` (a channel tensor), rope rows [T, n], and each pool's.

        `layer_inputs` are from `Embedding.layer_inputs`. `spans` has the number of slots that the inputs of
        each pool cover, from the pool's first on; None means all slots.

        Raises:
            ArtifactError: a row is outside the span or the context (a bug of the caller).
        """
        positions = np.array([row.position for row in rows])
        if positions.min() < 0 or positions.max() >= self.context:
            raise ArtifactError(f"positions {positions.tolist()} are outside the context of {self.context}")
        ropes = {name: table[positions] for name, table in self.rope_rows.items()}
        places = self._places.get(len(rows), NO_PLACED)
        inputs: dict[str, Tensor | Homes] = {
            name: _placed(places.get(name), value)
            for name, value in {HIDDEN_IN: hidden, **layer_inputs, **ropes}.items()
        }
        spans = spans or [pool.slots for pool in self.pools]
        for index, (pool, span, (seen, write)) in enumerate(
            zip(self.pools, spans, self._masks_of(len(rows)), strict=True)
        ):
            _require_within(rows, index, pool, span)
            homes = np.array([-1 if (s := row.slots[index].home) is None else s for row in rows], np.int32)
            visible = [row.slots[index].visible for row in rows]
            if isinstance(seen, ChunkPlaces):
                # Such a pool is small, and is always covered whole, whatever part of it is in use.
                span = pool.slots
                inputs[pool.mask_input], inputs[pool.live_input or ""] = seen.of(homes)
            elif isinstance(seen, Taps):
                inputs[pool.mask_input] = seen.of(visible, homes, span)
            else:
                inputs[pool.mask_input] = seen.of(visible, span)
            takes_positions = pool.takes_positions(self._form)
            if takes_positions:
                homes = _side_by_side(homes, pool, span)
            if self._homes or takes_positions:
                inputs[pool.write_input] = _placed(places.get(pool.write_input), homes)
            else:
                inputs[pool.write_input] = write.of(homes, span)
        return inputs

    def _masks_of(self, width: int) -> list[tuple[Seen, WriteMask]]:
        """Return each pool's masks for this width; masks without a place are kept for one width at a time."""
        places = self._places.get(width, NO_PLACED)
        kept = width if places else 0
        if kept not in self._masks:
            self._masks[kept] = [
                (_seen_of(pool, places), WriteMask(places.get(pool.write_input))) for pool in self.pools
            ]
        return self._masks[kept]


def _seen_of(pool: KVCacheGroup, places: Mapping[str, NDArray[Any]]) -> Seen:
    place = places.get(pool.mask_input)
    if pool.reads == "chunk":
        return ChunkPlaces(pool, place, places.get(pool.live_input or ""))
    if pool.reads == "mask":
        return AttentionMask(place)
    return Taps(pool.window or 1, place)


def _rope_rows(table: RopeTable, context: int, function: np.ufunc) -> Tensor:
    """Return function(position * frequency) * magnitude, [context, rotary_dim / 2], float64 cast to fp16."""
    positions = np.arange(context, dtype=np.float64)[:, None]
    grown = 1 + table.temperature * np.log1p(positions // table.temperature_step)
    angles = positions * np.asarray(table.frequencies, dtype=np.float64)
    rows: Tensor = (function(angles) * (table.magnitude * grown)).astype(np.float16)
    return rows


def _placed(place: NDArray[Any] | None, value: NDArray[Any]) -> NDArray[Any]:
    """Copy an input to its place, if it has one; return the array that holds it."""
    if place is None:
        return value
    place[...] = value
    return place


def _side_by_side(homes: Homes, pool: KVCacheGroup, span: int) -> Homes:
    try:
        slots = side_by_side(homes)
    except ValueError as error:
        raise ArtifactError(f"in the pool {pool.name!r} {error}") from None
    if slots[-1] >= span:
        raise ArtifactError(f"pads up to slot {slots[-1]} exceed the {span} slots of the pool {pool.name!r}")
    return slots


def _require_within(rows: Sequence[Row], index: int, pool: KVCacheGroup, span: int) -> None:
    if span > pool.slots:
        raise ArtifactError(f"a span of {span} exceeds the {pool.slots} slots of the pool {pool.name!r}")
    for row in rows:
        own = row.slots[index]
        slots = [slot for run in own.visible if run for slot in (run[0], run[-1])]
        slots += [] if own.home is None else [own.home]
        if not all(0 <= slot < span for slot in slots):
            raise ArtifactError(f"slots {slots} are outside the {span} slots of the pool {pool.name!r}")
