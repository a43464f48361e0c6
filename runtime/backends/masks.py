"""The masks of one pool, kept from pass to pass: only what rows changed is written again."""

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
    """Make a row's mask [span] that of `now`; touches what came, went, or overlaps that."""
    stays, known = set(now), set(before)
    went = [slots for slots in before if slots not in stays]
    for slots in went:
        mask[slots.start : slots.stop] = MASKED
    for slots in now:
        if slots not in known or any(slots.start < w.stop and w.start < slots.stop for w in went):
            mask[slots.start : slots.stop] = 0
