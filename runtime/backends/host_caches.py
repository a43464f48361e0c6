"""Hold states in the host (KVForm.OUTSIDE): a shard takes them as inputs and returns the pass's new rows.

`HostCachesRunner` hides this from its callers, which read and write states as in every other K/V form.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from anespec.manifests.schema import KVCacheGroup, StateSpec
from anespec.runtime.backends.pass_inputs import homes_of
from anespec.runtime.backends.runner import Homes, Inputs, Outputs, ShardRunner, Tensor

MASKED_SLOTS = 3
"""The axis of the slots in attn_mask [1, 1, T, S]."""


@dataclass(frozen=True)
class HostCache:
    """A state that the host holds, fp16 [n, n_kv, S, head_dim], and the names of its tensors.

    `new_rows` is the output with the pass's new rows, None if passes only read the state. The inputs are
    those of the state's pool. A pass covers all slots unless `has_spans`.
    """

    slots: Tensor
    new_rows: str | None
    mask_input: str
    write_input: str
    has_spans: bool

    def put(self, rows: Tensor, homes: Homes) -> None:
        """Write row t of [n, n_kv, T, head_dim] into slot homes[t], unless that is -1.

        A negative zero becomes zero, as in the sum to which the pass itself attends.
        """
        lanes = np.flatnonzero(homes >= 0)
        self.slots[:, :, homes[lanes]] = rows[:, :, lanes] + np.float16(0)


def empty_caches(states: Iterable[StateSpec], pools: Iterable[KVCacheGroup]) -> Mapping[str, HostCache]:
    """Return a cache of zeros for every state that the host holds, by name."""
    by_name = {pool.name: pool for pool in pools}
    return {
        spec.name: HostCache(
            np.zeros(spec.shape, np.float16),
            spec.new_rows,
            by_name[spec.pool].mask_input,
            by_name[spec.pool].write_input,
            by_name[spec.pool].reads != "chunk",
        )
        for spec in states
        if spec.held == "host"
    }


class HostCachesRunner:
    """A ShardRunner around a runner whose caches are inputs.

    It passes the caches in, and writes the new rows into them after a pass.
    """

    def __init__(self, runner: ShardRunner, caches: Mapping[str, HostCache]) -> None:
        """Wrap `runner`; `caches` are by the names of the inputs that take them."""
        self._runner = runner
        self._caches = caches
        self._written = [(cache.new_rows, cache) for cache in caches.values() if cache.new_rows is not None]
        self._homes: Mapping[str, Homes] = {}

    @property
    def takes_homes(self) -> bool:
        """Whether the wrapped runner takes homes; see ShardRunner."""
        return self._runner.takes_homes

    @property
    def partial_spans(self) -> bool:
        """Whether the wrapped runner takes partial spans; see ShardRunner."""
        return self._runner.partial_spans

    def start(self, inputs: Inputs) -> None:
        """Begin a pass; see ShardRunner.

        Raises:
            ValueError: a write mask breaks its contract (see slot_writes).
        """
        self._runner.start(self._with_caches(inputs))

    def finish(self) -> Outputs:
        """Wait for the pass and write its new rows into the caches; see ShardRunner."""
        outputs = self._runner.finish()
        for name, cache in self._written:
            cache.put(outputs.tensor(name), self._homes[cache.write_input])
        return outputs

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; see ShardRunner."""
        outputs = self._runner.run(self._with_caches(inputs))
        for name, cache in self._written:
            cache.put(outputs.pop(name), self._homes[cache.write_input])
        return outputs

    def _with_caches(self, inputs: Inputs) -> Inputs:
        """Return `inputs` with the caches' slots in the span; remember which slots the pass writes."""
        self._homes = {
            name: homes_of(inputs[name]) for name in {cache.write_input for _, cache in self._written}
        }
        slots = {
            name: cache.slots[:, :, : inputs[cache.mask_input].shape[MASKED_SLOTS]]
            if cache.has_spans
            else cache.slots
            for name, cache in self._caches.items()
        }
        return {**inputs, **slots}

    def read_state(self, name: str) -> Tensor:
        """Return a copy of a state; see ShardRunner."""
        return self._caches[name].slots.copy()

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self._caches[name].slots[...] = value

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of some slots of a state; see ShardRunner."""
        return self._caches[name].slots[:, :, first : first + count].copy()

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner."""
        self._caches[name].slots[:, :, first : first + value.shape[2]] = value

    def close(self) -> None:
        """Release the wrapped runner and the caches."""
        self._runner.close()
        self._caches, self._written = {}, []
