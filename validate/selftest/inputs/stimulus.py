"""Make the inputs of a shard: rows at consecutive positions, and random hidden states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.manifests.channel_layout import from_rows, to_rows
from anespec.manifests.schema import Manifest
from anespec.runtime.backends.verifier import shape_of
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Row, RowKind
from anespec.runtime.rows import chain_rows
from anespec.validate.selftest.devices.device import Tensor


@dataclass(frozen=True)
class Pass:
    """One pass: its rows, and their hidden states as a channel tensor."""

    rows: tuple[Row, ...]
    hidden: Tensor


def region_map(manifest: Manifest) -> SlotMapping:
    """Return the slot mapping of an artifact's sequences."""
    return SlotMapping.of(shape_of(manifest))


def passes(
    manifest: Manifest, width: int, count: int, *, first: int = 0, seed: int = 0, size: float = 1.0
) -> Iterator[Pass]:
    """Yield `count` passes of `width` rows of one sequence, from position `first` on.

    At the end of the context the sequence restarts at `first` and overwrites its slots. Positions at the end
    of a ring are left out if a pass may not span it. Hidden states are normal, with standard deviation
    `size`.
    """
    rng = np.random.default_rng(seed)
    where, position = region_map(manifest), first
    for _ in range(count):
        while (room := where.longest_run_from(position)) < width:
            position += room
        if position + width > manifest.context:
            position = first
        hidden = (size * rng.standard_normal((width, manifest.hyperparameters.d))).astype(np.float16)
        yield pass_of(where, position, hidden)
        position += width


def pass_of(where: SlotMapping, position: int, hidden: Tensor) -> Pass:
    """Return one pass of the rows [T, d] at consecutive positions."""
    rows = chain_rows(where, 0, position, RowKind.PROMPT, [0] * len(hidden))
    return Pass(tuple(rows), np.ascontiguousarray(from_rows(hidden)))


def rows_of(steps: Sequence[Tensor]) -> Tensor:
    """Return the hidden states of several passes as rows [all, d]."""
    return np.concatenate([to_rows(step) for step in steps])
