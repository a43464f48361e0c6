"""What mixers keep of each row, and in which pool."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PoolKind:
    """What mixers of one pool have in common: how rows read it, and how many positions they see.

    `reads` and `window` are those of manifests.schema.KVCacheGroup.
    """

    reads: Literal["mask", "taps", "chunk"]
    window: int | None


@dataclass(frozen=True)
class Store:
    """What a mixer has in the slots of one pool: the numbers that it reads of each slot, and those it keeps.

    It keeps none if it reads another layer's.
    """

    pool: PoolKind
    read: int
    kept: int


CHUNKS = PoolKind("chunk", None)
"""The pool of a chunk's rows."""
