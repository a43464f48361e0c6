"""The seam between an artifact's verifier and a library that executes shards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tensor = NDArray[np.float16]

Homes = NDArray[np.int32]
"""The slot that each lane writes, -1 where it writes none."""

Inputs = Mapping[str, Tensor | Homes]
"""A shard's inputs by name. A write mask [1, 1, S, T] may be replaced by its `Homes` [T]; where rows are
written side by side, `Homes` are the input itself."""

Channels = NDArray[np.float16] | NDArray[np.float32]
"""One lane of an output, [C]; rounded to fp16 it is what the shard returns."""


@dataclass(frozen=True)
class PoolNames:
    """The parts of a program that belong to one pool of `slots` slots: the inputs that take its masks, its
    states.

    A state that the host holds is an input of the program. Only the first `used` slots are ever looked at
    where passes have spans.
    """

    mask_input: str
    write_input: str
    states: tuple[str, ...]
    slots: int
    used: int


class Outputs(Protocol):
    """The results of a pass over a shard; valid until the runner's next pass."""

    def tensor(self, name: str) -> Tensor:
        """A copy of an output, fp16; a channel tensor may have either layout."""
        ...

    def lane(self, name: str, lane: int) -> Channels:
        """The channels [C] of one lane of a channel tensor, in the library's own precision."""
        ...


class ShardRunner(Protocol):
    """One executable shard (or a chain of consecutive ones) with the states that it owns.

    States start as zeros. Shapes and names are those of the shard's manifest entry, but a channel tensor may
    be given in either layout (manifests.channel_layout). T and the span of each pool are read off the inputs'
    shapes.
    """

    @property
    def takes_homes(self) -> bool:
        """Whether the runner is faster with slot numbers in place of write masks."""
        ...

    @property
    def partial_spans(self) -> bool:
        """Whether masks may cover fewer slots than the pool has; the other slots are then not read."""
        ...

    def start(self, inputs: Inputs) -> None:
        """Begin a pass; `inputs` has every input by name, unchanged until `finish`, the next call."""
        ...

    def finish(self) -> Outputs:
        """Wait for the pass; it is over then, whether or not this raises."""
        ...

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once, from beginning to end; copies of all outputs."""
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
