"""The masks of one pool, kept from pass to pass: only what rows changed is written again."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.runner import Homes, Tensor

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
