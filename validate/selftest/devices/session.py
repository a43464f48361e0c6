"""Run passes through a layer shard on a device: make inputs, pass states or caches, time predictions."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from anespec.manifests.channel_layout import channels_of, laid_out, row_count
from anespec.manifests.schema import HIDDEN_OUT, LayerShard, Manifest, Shard, TensorSpec
from anespec.runtime.backends.host_caches import HostCache, empty_caches
from anespec.runtime.backends.pass_inputs import PassInputs, homes_of
from anespec.runtime.backends.runner import Homes
from anespec.validate.golden.closeness import closeness
from anespec.validate.selftest.devices.device import DeviceState, LoadedModel, Tensor, Units
from anespec.validate.selftest.devices.worker_session import pass_time
from anespec.validate.selftest.inputs.stimulus import Pass, rows_of
from anespec.validate.selftest.records import Comparison, PassTime

CARRIED_STD = 0.1
"""The standard deviation of carried states, about that of what a chunk of random rows adds."""


class ShardSession:
    """A loaded layer shard through which one sequence runs. It keeps the caches that the host holds."""

    def __init__(self, manifest: Manifest, shard: LayerShard, model: LoadedModel) -> None:
        self.manifest = manifest
        self.shard = shard
        self.model = model
        self._inputs = PassInputs(manifest)
        self.state: DeviceState | None = None
        self._caches: Mapping[str, HostCache] = {}
        self.reset()

    def reset(self) -> None:
        """Set states and caches to zeros, and carried states to fixed random numbers.

        No pass writes a carried state, so zeros would leave out what is computed of it.
        """
        self.state = self.model.make_state() if self.shard.program_states else None
        self._caches = empty_caches(self.shard.states, self.manifest.pools)
        rng = np.random.default_rng(6)
        for state in self.shard.states:
            if state.kind == "carried":
                self.write(state.name, (CARRIED_STD * rng.standard_normal(state.shape)).astype(np.float16))

    @property
    def state_names(self) -> tuple[str, ...]:
        """Return the names of all states, in the graph or held by the host."""
        return tuple(state.name for state in self.shard.states)

    def read(self, name: str) -> Tensor:
        """Return a copy of a state."""
        if name in self._caches:
            return self._caches[name].slots.copy()
        return self._states().read(name)

    def write(self, name: str, value: Tensor) -> None:
        """Replace a state."""
        if name in self._caches:
            self._caches[name].slots[...] = value
        else:
            self._states().write(name, value)

    def run(self, step: Pass) -> tuple[Tensor, float]:
        """Run one pass; return its hidden states and the seconds of the prediction."""
        made = self._inputs.of(step.rows, step.hidden)
        given: dict[str, Tensor | Homes] = {
            spec.name: as_taken(self.manifest, self.shard, spec, made[spec.name])
            for spec in self.shard.inputs
            if spec.name in made
        }
        given |= {name: cache.slots for name, cache in self._caches.items()}
        found = self.model.predict(given, self.state)
        for cache in self._caches.values():
            if cache.new_rows is not None:
                cache.put(found.outputs[cache.new_rows], homes_of(made[cache.write_input]))
        return found.outputs[HIDDEN_OUT], found.seconds

    def outputs(self, steps: Iterable[Pass]) -> list[Tensor]:
        """Run passes one after another and return their outputs."""
        return [self.run(step)[0] for step in steps]

    def time(self, steps: Sequence[Pass], units: Units) -> PassTime:
        """Return the median and the shortest time of the passes, without the first ones."""
        seconds = [self.run(step)[1] for step in steps]
        return pass_time(seconds, len(steps[0].rows), self.manifest.pools[0].slots, units)

    def close(self) -> None:
        """Release the model."""
        self.model.close()

    def _states(self) -> DeviceState:
        if self.state is None:
            raise KeyError("the function has no states")
        return self.state


def as_taken(manifest: Manifest, shard: Shard, spec: TensorSpec, value: Tensor | Homes) -> Tensor | Homes:
    """Return a shard's input in the type and layout of the function that runs passes of that many rows."""
    if spec.dtype == "int32":
        return value
    numbers = value.astype(np.float16, copy=False)
    if channels_of(spec.shape) is None:
        return numbers
    function = manifest.function_of(shard, row_count(numbers))
    if function is None:
        return numbers
    return laid_out(numbers, function.layout)


def compared(
    name: str,
    against: Literal["torch", "cpu", "device"],
    steps: Sequence[Pass],
    expected: Sequence[Tensor],
    found: Sequence[Tensor],
) -> Comparison:
    """Compare outputs with the expected ones; errors are relative to what the layers add to their input."""
    given = rows_of([step.hidden for step in steps]).astype(np.float32)
    wanted, got = rows_of(expected).astype(np.float32), rows_of(found)
    close = closeness(wanted, got, wanted - given)
    return Comparison(
        name=name,
        against=against,
        cosine=close.cosine,
        error=close.error,
        not_finite=close.not_finite,
    )


def digest(arrays: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bits of arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).view(np.uint16).tobytes())
    return found.hexdigest()
