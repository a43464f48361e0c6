"""The seam between an artifact's verifier and a library that executes shards."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tensor = NDArray[np.float16]
Feed = Mapping[str, Tensor]


class ShardRunner(Protocol):
    """One executable shard (or a chain of consecutive ones) with the states that it owns.

    States start as zeros. Shapes and names are those of the shard's manifest entry.
    """

    def run(self, feed: Feed) -> dict[str, Tensor]:
        """Execute once; `feed` has every input by name. T is read off the feed's shapes."""
        ...

    def read_state(self, name: str) -> Tensor:
        """A copy of a state, fp16 [1, n_kv, S, head_dim], bit for bit."""
        ...

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state."""
        ...

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """A copy of some slots of a state, fp16 [1, n_kv, count, head_dim]; costs what it copies."""
        ...

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace the slots of a state from `first` on; costs what it copies."""
        ...

    def close(self) -> None:
        """Release memory."""
        ...
