"""The protocol between an artifact's verifier and a library that executes shards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tensor = NDArray[np.float16]

Homes = NDArray[np.int32]
"""The home slot that each lane writes, int32 [T]; -1 if the lane writes none."""

Inputs = Mapping[str, Tensor | Homes]
"""A shard's inputs by name.

A runner that takes homes gets `Homes` [T] in place of a write mask [1, 1, S, T]. In the K/V form that writes
consecutive slots, `Homes` are the program's own input.
"""

Channels = NDArray[np.float16] | NDArray[np.float32]
"""One lane of an output, [C]. Rounded to fp16 it equals the shard's output."""


@dataclass(frozen=True)
class PoolNames:
    """The names in a program that belong to one pool of `slots` slots: its mask inputs and its states.

    A state that the host holds is an input of the program. If passes have spans, only the first `used` slots
    are ever read.
    """

    mask_input: str
    write_input: str
    states: tuple[str, ...]
    slots: int
    used: int


class Outputs(Protocol):
    """The results of a pass over a shard; valid until the runner's next pass."""

    def tensor(self, name: str) -> Tensor:
        """Return a copy of an output, fp16; a channel tensor may have either layout."""
        ...

    def lane(self, name: str, lane: int) -> Channels:
        """Return the channels [C] of one lane of a channel tensor, in the library's own precision."""
        ...


class ShardRunner(Protocol):
    """An executable shard, or a chain of consecutive shards, with its own states.

    States start as zeros. The names and shapes of tensors are those of the shard's entry in the manifest, but
    a channel tensor may be passed in either layout (manifests.channel_layout). The runner derives T and the
    span of each pool from the inputs' shapes.
    """

    @property
    def takes_homes(self) -> bool:
        """Whether the runner is faster with slot numbers (`Homes`) than with write masks."""
        ...

    @property
    def partial_spans(self) -> bool:
        """Whether masks may cover only the first slots of a pool; the pass then reads no others."""
        ...

    def start(self, inputs: Inputs) -> None:
        """Begin a pass with all inputs by name.

        The caller calls `finish` next, and leaves the inputs unchanged until then.
        """
        ...

    def finish(self) -> Outputs:
        """Wait for the pass and return its outputs. If this raises, the pass is over too."""
        ...

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute one whole pass; return copies of all outputs."""
        ...

    def read_state(self, name: str) -> Tensor:
        """Return a copy of a state, fp16 [1, n_kv, S, head_dim], bit for bit."""
        ...

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state."""
        ...

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of `count` slots of a state from `first` on, fp16 [1, n_kv, count, head_dim].

        The time is proportional to `count`.
        """
        ...

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace the slots of a state from `first` on; the time is proportional to their number."""
        ...

    def close(self) -> None:
        """Release the shard and its states."""
        ...
