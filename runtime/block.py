"""Rows, blocks and the Verifier protocol: the seam between the engine and every backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float16]


class RowKind(StrEnum):
    """Why a row is in its block."""

    PROMPT = "prompt"
    CARRY = "carry"
    DRAFT = "draft"
    PAD = "pad"


@dataclass(frozen=True)
class Place:
    """Where a row stands in one pool.

    `slot` is the slot that its K/V is written to, None for a pad row, which writes nowhere.
    `visible` are the spans of slots that the row attends to, its own slot among them; never empty,
    since a softmax over nothing is not a number.
    """

    slot: int | None
    visible: tuple[range, ...]


@dataclass(frozen=True)
class Row:
    """One query position in a block. `places` has one entry per pool, in the manifest's order."""

    kind: RowKind
    token: int
    position: int
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Block:
    """The rows of one pass; a row's lane is its index. Two rows never write the same slot."""

    rows: tuple[Row, ...]
    wants_logits: bool = True


@dataclass(frozen=True)
class PoolShape:
    """What the engine must know of a pool to place rows in it (see manifests.schema.Pool)."""

    name: str
    region_slots: int
    window: int | None


@dataclass(frozen=True)
class VerifierShape:
    """What the engine must know of a verifier: T of a decoding pass, widest pass, sizes."""

    block: int
    t_max: int
    context: int
    sequences: int
    vocabulary: int
    pools: tuple[PoolShape, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """The numbers of rows that a pass may have: the block, and powers of two above it up to t_max.

        Few, so that the exactness gate can measure every one that the engine will ever run.
        """
        powers = (1 << power for power in range(self.t_max.bit_length()))
        return (self.block, *(width for width in powers if self.block < width <= self.t_max))


class Verifier(Protocol):
    """A backend holding an artifact: runs blocks over a KV state that it owns.

    The state starts as zeros. Slots are absolute: region r of a pool starts at r * region_slots.
    """

    @property
    def shape(self) -> VerifierShape:
        """Sizes; constant over the verifier's life."""
        ...

    def forward(self, block: Block) -> Logits | None:
        """Run one pass over 1 to t_max rows: write every row's K/V, return logits.

        Returns fp16 logits of shape (len(block.rows), vocabulary); None where `wants_logits` is
        False (the head shards are then not run).
        """
        ...

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy the K/V bits of `count` slots of pool number `pool` from slot `source` to `target`."""
        ...

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        """The K/V bits of `count` slots: one array [1, n_kv, count, head_dim] per state of the pool."""
        ...

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write back what `export_slots` returned, to the slots from `first` on."""
        ...

    def close(self) -> None:
        """Release the backend's memory; the verifier cannot be used afterwards."""
        ...
