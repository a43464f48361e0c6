"""The contents of rings at the ends of prompts, saved so that a later prompt can continue from there.

A pool with a window is a ring: an answer overwrites the window that a second turn, or the same prompt again,
would need. So its slots are exported before that happens, within a budget of bytes.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.regions import RegionMap

SlotValues = Sequence[NDArray[np.float16]]


@dataclass(frozen=True)
class RingState:
    """The last positions of an owner's prompt in every pool with a window.

    `values[pool]` has what `Verifier.export_slots` returned for each stretch of slots of the positions from
    `first[pool]` to the prompt's end, oldest first.
    """

    owner: str
    tokens: tuple[int, ...]
    first: Mapping[int, int]
    values: Mapping[int, tuple[SlotValues, ...]]

    @property
    def bytes(self) -> int:
        """Its bytes in memory."""
        return sum(array.nbytes for pool in self.values.values() for part in pool for array in part)


class RingStates:
    """Ring states by their owners and prompts, the least recently used given up first."""

    def __init__(self, region_map: RegionMap, budget: int) -> None:
        """`budget` is in bytes."""
        self._map = region_map
        self._budget = budget
        self._kept: OrderedDict[tuple[str, tuple[int, ...]], RingState] = OrderedDict()

    @property
    def bytes(self) -> int:
        """The bytes of all of them."""
        return sum(state.bytes for state in self._kept.values())

    def keep(self, state: RingState) -> None:
        """Keep a state, and give up the oldest ones that no longer fit the budget."""
        if state.bytes > self._budget:
            return
        key = (state.owner, state.tokens)
        self._kept[key] = state
        self._kept.move_to_end(key)
        while self.bytes > self._budget:
            self._kept.popitem(last=False)

    def has(self, owner: str, tokens: tuple[int, ...]) -> bool:
        """Return whether the state at the end of exactly this prompt is saved; this counts as a use."""
        if (owner, tokens) not in self._kept:
            return False
        self._kept.move_to_end((owner, tokens))
        return True

    def longest(self, prompt: Sequence[int], most: int, owner: str) -> tuple[int, RingState | None]:
        """The most leading tokens, `most` at most, that a state of the owner lets `prompt` go on from; or 0.

        A state serves its whole prompt, and its prompt but for the last token.
        """
        best: tuple[int, RingState | None] = (0, None)
        for state in self._kept.values():
            size = len(state.tokens)
            count = min(size, most)
            if owner != state.owner or count <= best[0] or count < size - 1:
                continue
            if tuple(prompt[:count]) == state.tokens[:count]:
                best = count, state
        return best

    def clear(self) -> None:
        """Give up all of them."""
        self._kept.clear()
