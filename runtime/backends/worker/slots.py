"""K/V bits in and out of workers, piece by piece through the shared memory's `slots`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.worker.shared_memory import SharedMemory
from anespec.runtime.backends.worker.stages import SLOTS, StageState
from anespec.runtime.backends.worker.worker_pool import WorkerPool


@dataclass(frozen=True)
class HeldBy:
    """The states of one pool that worker number `worker` holds, in the order that it moves them."""

    worker: int
    states: tuple[StageState, ...]

    @property
    def slot_items(self) -> int:
        """Numbers of one slot of all of them."""
        return sum(state.slot_bytes for state in self.states) // 2


class SlotTransfer:
    """Moves slots of a pool's states, all workers' one after another."""

    def __init__(self, workers: WorkerPool, shared: SharedMemory) -> None:
        self._workers = workers
        self._buffer = shared.tensor(SLOTS)

    def holders(self, pool: int) -> list[HeldBy]:
        """The stages that hold states of pool number `pool`, in order."""
        held = [
            HeldBy(worker, tuple(s for stage in share for s in stage.held if s.pool == pool))
            for worker, share in enumerate(self._workers.shares)
        ]
        return [holder for holder in held if holder.states]

    def copy(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy slots within the states; see Verifier.copy_slots."""
        for holder in self.holders(pool):
            fields = {"pool": pool, "source": source, "target": target, "count": count}
            self._workers.ask(holder.worker, "copy_slots", fields)

    def export(self, pool: int, first: int, count: int) -> list[NDArray[np.float16]]:
        """Copies of consecutive slots, an array [n, n_kv, count, head_dim] per state."""
        found: list[NDArray[np.float16]] = []
        for holder in self.holders(pool):
            values = [_empty(state, count) for state in holder.states]
            for begin, size in self._pieces(holder, count):
                self._workers.ask(
                    holder.worker, "export", {"pool": pool, "first": first + begin, "count": size}
                )
                for value, piece in zip(values, self._cut(holder, size), strict=True):
                    value[:, :, begin : begin + size] = piece
            found += values
        return found

    def import_(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write back what `export` returned."""
        left = list(values)
        for holder in self.holders(pool):
            own, left = left[: len(holder.states)], left[len(holder.states) :]
            for begin, size in self._pieces(holder, own[0].shape[2]):
                for value, piece in zip(own, self._cut(holder, size), strict=True):
                    piece[...] = value[:, :, begin : begin + size]
                self._workers.ask(
                    holder.worker, "import", {"pool": pool, "first": first + begin, "count": size}
                )
        if left:
            raise ValueError(f"{len(left)} arrays more than the pool has states")

    def _pieces(self, holder: HeldBy, count: int) -> list[tuple[int, int]]:
        """Return the beginnings of the pieces that go through the buffer one after another, and their numbers
        of slots."""
        most = self._buffer.size // holder.slot_items
        return [(begin, min(most, count - begin)) for begin in range(0, count, most)]

    def _cut(self, holder: HeldBy, count: int) -> list[NDArray[np.float16]]:
        """The buffer as arrays of so many slots of each state."""
        cut, begin = [], 0
        for state in holder.states:
            shape = _of_slots(state, count)
            cut.append(self._buffer[begin : begin + prod(shape)].reshape(shape))
            begin += prod(shape)
        return cut


def _of_slots(state: StageState, count: int) -> tuple[int, int, int, int]:
    n, heads, _, head_dim = state.shape
    return (n, heads, count, head_dim)


def _empty(state: StageState, count: int) -> NDArray[np.float16]:
    return np.empty(_of_slots(state, count), np.float16)
