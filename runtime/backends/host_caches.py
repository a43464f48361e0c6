"""K/V that the host holds (KVForm.OUTSIDE): a shard reads them as inputs and returns a pass's rows of them.

A runner that holds them hides the difference: what is above it sees the states of any other form.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from anespec.manifests.schema import KVCacheGroup, StateSpec
from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.runner import Homes, Inputs, Outputs, ShardRunner, Tensor

MASKED_SLOTS = 3
"""The axis of slots in attn_mask [1, 1, T, S]."""


@dataclass(frozen=True)
class HostCache:
    """The slots of one state, fp16 [n, n_kv, S, head_dim], and the names by which a pass finds its rows."""

    slots: Tensor
    new_rows: str
    mask_input: str
    write_input: str

    def put(self, rows: Tensor, homes: Homes) -> None:
        """Write row t of [n, n_kv, T, head_dim] into slot homes[t], where that is one.

        A negative zero becomes zero, as in the sum that the pass itself attends to.
        """
        lanes = np.flatnonzero(homes >= 0)
        self.slots[:, :, homes[lanes]] = rows[:, :, lanes] + np.float16(0)


def empty_caches(states: Iterable[StateSpec], pools: Iterable[KVCacheGroup]) -> Mapping[str, HostCache]:
    """Zeros for every state that the host holds, by name."""
    by_name = {pool.name: pool for pool in pools}
    return {
        spec.name: HostCache(
            np.zeros(spec.shape, np.float16),
            spec.new_rows,
            by_name[spec.pool].mask_input,
            by_name[spec.pool].write_input,
        )
        for spec in states
        if spec.held == "host"
    }


class HostCachesRunner:
    """A ShardRunner over one whose caches are inputs: it gives them, and writes the new rows after a pass."""

    def __init__(self, runner: ShardRunner, caches: Mapping[str, HostCache]) -> None:
        """Hold `caches`, by the names of their inputs."""
        self._runner = runner
        self._caches = caches
        self._homes: Mapping[str, Homes] = {}

    @property
    def takes_homes(self) -> bool:
        """As the runner inside; see ShardRunner."""
        return self._runner.takes_homes

    @property
    def partial_spans(self) -> bool:
        """As the runner inside; see ShardRunner."""
        return self._runner.partial_spans

    def start(self, inputs: Inputs) -> None:
        """Begin a pass; see ShardRunner.

        Raises:
            ValueError: a write mask breaks its contract (see slot_writes).
        """
        self._runner.start(self._with_caches(inputs))

    def finish(self) -> Outputs:
        """Wait for the pass and keep its rows; see ShardRunner."""
        outputs = self._runner.finish()
        for cache in self._caches.values():
            cache.put(outputs.tensor(cache.new_rows), self._homes[cache.write_input])
        return outputs

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; see ShardRunner."""
        outputs = self._runner.run(self._with_caches(inputs))
        for cache in self._caches.values():
            cache.put(outputs.pop(cache.new_rows), self._homes[cache.write_input])
        return outputs

    def _with_caches(self, inputs: Inputs) -> Inputs:
        """The inputs and the slots in the span; whose slots the pass writes is noted."""
        self._homes = {
            name: homes_of(inputs[name]) for name in {cache.write_input for cache in self._caches.values()}
        }
        slots = {
            name: cache.slots[:, :, : inputs[cache.mask_input].shape[MASKED_SLOTS]]
            for name, cache in self._caches.items()
        }
        return {**inputs, **slots}

    def read_state(self, name: str) -> Tensor:
        """A copy of a state; see ShardRunner."""
        return self._caches[name].slots.copy()

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self._caches[name].slots[...] = value

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """A copy of some slots of a state; see ShardRunner."""
        return self._caches[name].slots[:, :, first : first + count].copy()

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner."""
        self._caches[name].slots[:, :, first : first + value.shape[2]] = value

    def close(self) -> None:
        """Release memory."""
        self._runner.close()
        self._caches = {}
