"""From rows to the arrays that shards take: rope rows, masks or slot numbers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.schema import HIDDEN_IN, KVCacheGroup, KVForm, Manifest, RopeTable
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.runtime.passes import Row
from anespec.system.errors import ArtifactError


def homes_of(written: Tensor | Homes) -> Homes:
    """The slots that lanes write, of a write mask or of such numbers themselves.

    Raises:
        ValueError: the contract of kv_write_mask is broken.
    """
    homes = _homes_of_mask(written) if written.ndim > 1 else written.astype(np.int32)
    taken = homes[homes >= 0]
    if not taken.size or np.unique(taken).size < taken.size:
        raise ValueError("a write mask must write at least one slot, each row one slot of its own")
    return homes


def write_first_slots(written: NDArray[Any]) -> None:
    """Have row t write slot t, in place: slot numbers (int32 [T]), or a write mask [1, 1, span, T]."""
    if written.dtype == np.int32:
        written[...] = np.arange(written.size)
    else:
        rows = np.arange(min(written.shape[-2:]))
        written[...] = 0
        written[..., rows, rows] = 1


def side_by_side(homes: Homes) -> Homes:
    """The slots that all lanes write where those of a pass are side by side: pads write behind the last row.

    Raises:
        ValueError: lane 0 writes nowhere, or a lane another slot than that behind the slot of the last lane.
    """
    slots: Homes = (homes[0] + np.arange(len(homes))).astype(np.int32)
    if homes[0] < 0 or ((homes >= 0) & (homes != slots)).any():
        raise ValueError(f"the slots {homes.tolist()} are not side by side from lane 0 on")
    return slots


def _homes_of_mask(mask: NDArray[Any]) -> Homes:
    slots, lanes = np.nonzero(mask[0, 0])
    if np.unique(lanes).size < lanes.size or (mask[0, 0, slots, lanes] != 1).any():
        raise ValueError("a write mask must have no more than a single one in each of its columns")
    homes = np.full(mask.shape[3], -1, np.int32)
    homes[lanes] = slots
    return homes


# The masks of one pool, kept from pass to pass: only what rows changed is written again.

MASKED = np.float16(-1e4)
"""exp(-1e4) is exactly 0 in fp16; minus infinity would make rows not a number on some hardware."""

Visible = tuple[range, ...]
"""Ranges of consecutive slots; they may overlap."""


class AttentionMask:
    """attn_mask [1, 1, T, span]: 0 where a row attends to a slot, else MASKED."""

    def __init__(self, place: Tensor | None = None) -> None:
        """Keep the mask in `place`, which is as large as every pass's; without it, in an array of its own."""
        self._mask = np.empty((1, 1, 0, 0), np.float16) if place is None else place
        self._seen: list[Visible] = []

    def of(self, visible: list[Visible], span: int) -> Tensor:
        """The mask of rows that attend to these slots, all below `span`; good until the next call."""
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
    """kv_write_mask [1, 1, span, T]: column t is one-hot at the slot that row t writes, zero where none."""

    def __init__(self, place: Tensor | None = None) -> None:
        """Keep the mask in `place`, as an AttentionMask does."""
        self._mask = np.empty((1, 1, 0, 0), np.float16) if place is None else place
        self._written: Homes | None = None

    def of(self, homes: Homes, span: int) -> Tensor:
        """The mask of lanes that write these slots, all below `span`; good until the next call."""
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


def _change(mask: NDArray[np.float16], before: Visible, now: Visible) -> None:
    """Make a row's mask [span] that of `now`, writing only what differs.

    Most ranges, pages of a long text, are the same as before; they matter only where one that is not overlaps
    them.
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


NO_INPUTS: Mapping[str, Tensor] = MappingProxyType({})
NO_PLACED: Mapping[str, NDArray[Any]] = MappingProxyType({})
NO_PLACES: Mapping[int, Mapping[str, NDArray[Any]]] = MappingProxyType({})


class PassInputs:
    """Builds a pass's inputs by the manifest's names. Rope rows are computed once for all positions.

    With `homes` the slots that rows write are numbers, without it one-hot masks. An artifact that writes rows
    side by side takes numbers in any case, of pads too. Masks are kept from pass to pass and changed only
    where rows differ, so what `of` returns is good until its next call.

    `places` has arrays that the inputs of a pass over T rows are to lie in, by T and by name; masks in them
    are over all slots. What is not in them lies in arrays of its own.
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
        self._side_by_side = manifest.kv_form is KVForm.AT_POSITION
        self._places = places
        self._masks: dict[int, list[tuple[AttentionMask, WriteMask]]] = {}

    def of(
        self,
        rows: Sequence[Row],
        hidden: Tensor,
        layer_inputs: Mapping[str, Tensor] = NO_INPUTS,
        spans: Sequence[int] | None = None,
    ) -> dict[str, Tensor | Homes]:
        """All inputs of a layer shard: the channel tensor `hidden`, rope rows [T, n], and those of each pool.

        `layer_inputs` are those of layers with embeddings of their own (`Embedding.layer_inputs`). A pool's
        are over its first `spans` slots, all of them where that is None.

        Raises:
            ArtifactError: a row stands outside the span or the context (a bug of the caller).
        """
        positions = np.array([row.position for row in rows])
        if positions.min() < 0 or positions.max() >= self.context:
            raise ArtifactError(f"positions {positions.tolist()} leave the context of {self.context}")
        ropes = {name: table[positions] for name, table in self.rope_rows.items()}
        places = self._places.get(len(rows), NO_PLACED)
        inputs: dict[str, Tensor | Homes] = {
            name: _placed(places.get(name), value)
            for name, value in {HIDDEN_IN: hidden, **layer_inputs, **ropes}.items()
        }
        spans = spans or [pool.slots for pool in self.pools]
        for index, (pool, span, (attention, write)) in enumerate(
            zip(self.pools, spans, self._masks_of(len(rows)), strict=True)
        ):
            _require_within(rows, index, pool, span)
            homes = np.array([-1 if (s := row.slots[index].home) is None else s for row in rows], np.int32)
            if self._side_by_side:
                homes = _side_by_side(homes, pool, span)
            inputs[pool.mask_input] = attention.of([row.slots[index].visible for row in rows], span)
            if self._homes or self._side_by_side:
                inputs[pool.write_input] = _placed(places.get(pool.write_input), homes)
            else:
                inputs[pool.write_input] = write.of(homes, span)
        return inputs

    def _masks_of(self, width: int) -> list[tuple[AttentionMask, WriteMask]]:
        """The masks of passes so wide; those without a place are kept for one width at a time."""
        places = self._places.get(width, NO_PLACED)
        kept = width if places else 0
        if kept not in self._masks:
            self._masks[kept] = [
                (AttentionMask(places.get(pool.mask_input)), WriteMask(places.get(pool.write_input)))
                for pool in self.pools
            ]
        return self._masks[kept]


def _rope_rows(table: RopeTable, context: int, function: np.ufunc) -> Tensor:
    """[context, rotary_dim / 2]: function(position * frequency) * magnitude, in float64, then fp16."""
    positions = np.arange(context, dtype=np.float64)[:, None]
    grown = 1 + table.temperature * np.log1p(positions // table.temperature_step)
    angles = positions * np.asarray(table.frequencies, dtype=np.float64)
    rows: Tensor = (function(angles) * (table.magnitude * grown)).astype(np.float16)
    return rows


def _placed(place: NDArray[Any] | None, value: NDArray[Any]) -> NDArray[Any]:
    """Return an input where the runner wants it: its place, once it holds the value, or the value itself."""
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
        raise ArtifactError(f"pads up to slot {slots[-1]} leave the pool {pool.name!r} of {span}")
    return slots


def _require_within(rows: Sequence[Row], index: int, pool: KVCacheGroup, span: int) -> None:
    if span > pool.slots:
        raise ArtifactError(f"a span of {span} leaves the pool {pool.name!r} of {pool.slots}")
    for row in rows:
        own = row.slots[index]
        slots = [slot for run in own.visible if run for slot in (run[0], run[-1])]
        slots += [] if own.home is None else [own.home]
        if not all(0 <= slot < span for slot in slots):
            raise ArtifactError(f"slots {slots} leave the pool {pool.name!r} of {span}")
