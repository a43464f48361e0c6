"""Copy K/V bits into and out of workers, in pieces through the part `slots` of the shared memory."""

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
    """The states of one pool that the worker with index `worker` holds, in the order of transfers."""

    worker: int
    states: tuple[StageState, ...]

    @property
    def slot_items(self) -> int:
        """The number of fp16 values in one slot of all these states."""
        return sum(state.slot_bytes for state in self.states) // 2


class SlotTransfer:
    """Copies slots of a pool's states, one worker after another."""

    def __init__(self, workers: WorkerPool, shared: SharedMemory) -> None:
        self._workers = workers
        self._buffer = shared.tensor(SLOTS)

    def holders(self, pool: int) -> list[HeldBy]:
        """Return the workers that hold states of pool number `pool`, with those states, in order."""
        held = [
            HeldBy(worker, tuple(s for stage in share for s in stage.held if s.pool == pool))
            for worker, share in enumerate(self._workers.shares)
        ]
        return [holder for holder in held if holder.states]

    def names(self, pool: int) -> list[str]:
        """Return the names of a pool's states, in the order of transfers."""
        return [state.name for holder in self.holders(pool) for state in holder.states]

    def copy(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy slots within the states; see Verifier.copy_slots."""
        for holder in self.holders(pool):
            fields = {"pool": pool, "source": source, "target": target, "count": count}
            self._workers.ask(holder.worker, "copy_slots", fields)

    def export(self, pool: int, first: int, count: int) -> list[NDArray[np.float16]]:
        """Return copies of consecutive slots, an array [n, n_kv, count, head_dim] for each state."""
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
            raise ValueError(f"there are {len(left)} more arrays than states in the pool")

    def _pieces(self, holder: HeldBy, count: int) -> list[tuple[int, int]]:
        """Return the first slot and the number of slots of each piece that fits the buffer."""
        most = self._buffer.size // holder.slot_items
        return [(begin, min(most, count - begin)) for begin in range(0, count, most)]

    def _cut(self, holder: HeldBy, count: int) -> list[NDArray[np.float16]]:
        """Return the buffer divided into one array of `count` slots for each state."""
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
