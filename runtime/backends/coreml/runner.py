"""Run a compiled shard with Core ML. Its states are one MLState, which all of its functions share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import DECLARED, ChannelLayout, channels_of, laid_out, row_count, row_of
from anespec.manifests.schema import HIDDEN_IN, LayerShard, Shard
from anespec.runtime.backends.coreml.library import LoadedModel, ModelState
from anespec.runtime.backends.runner import Channels, Inputs, Outputs, Tensor
from anespec.runtime.passes import StateLostError
from anespec.system.coreml_errors import NOT_A_NUMBER, error_sentence
from anespec.system.errors import AnespecError, ArtifactError
from anespec.system.formatting import shape_text

ANY_WIDTH = None
"""The key of a model that runs passes of any width."""


@dataclass(frozen=True)
class CoreMLOutputs:
    """The results of a pass, fp32 since coremltools widens fp16."""

    values: Mapping[str, NDArray[np.float32]]

    def tensor(self, name: str) -> Tensor:
        """Return a copy of an output; see Outputs."""
        return self.values[name].astype(np.float16)

    def lane(self, name: str, lane: int) -> Channels:
        """Return one lane of an output; see Outputs.

        It is contiguous: in the output lanes are interleaved, and a row of logits is read many times.
        """
        return np.ascontiguousarray(row_of(self.values[name], lane))


class CoreMLRunner:
    """A ShardRunner that calls Core ML. Caches that the host holds are inputs of the shard.

    coremltools copies only whole states, so reading or writing slots costs a copy of all slots, widened to
    fp32: 8 MB for a state of 2048 slots, 8 heads and 128 channels.

    After a failure in a pass the content of the states is unknown: they are replaced by states of zeros.
    """

    takes_homes = False
    """False: the shard's inputs are masks, so slot numbers would have to be expanded."""

    partial_spans = False
    """False: the number of slots is fixed when a shard is compiled."""

    def __init__(
        self,
        shard: Shard,
        models: Mapping[int | None, LoadedModel],
        layouts: Mapping[int | None, ChannelLayout] = MappingProxyType({}),
    ) -> None:
        """Create the states of a shard whose functions are loaded.

        `models` are the functions by the T that they run, or by ANY_WIDTH. `layouts` are the layouts of their
        channel tensors, by the same keys; a key that is missing has the declared layout.

        Raises:
            ArtifactError: the states have other shapes than the manifest says.
        """
        self.shard = shard
        self.models = dict(models)
        self.layouts = dict(layouts)
        self.carries = isinstance(shard, LayerShard)
        self.states = {state.name: state.shape for state in shard.program_states}
        self.inputs = shard.program_inputs
        self.outputs = tuple(spec.name for spec in shard.program_outputs)
        self._state = self._new_state()
        self._inputs: Inputs = {}

    def _new_state(self) -> ModelState | None:
        """Return a state of zeros; None if the shard has no states.

        Apple's header says that new states are zeros (grade A). That is checked nevertheless.

        Raises:
            ArtifactError: Core ML cannot create the state, or a shape differs from the manifest's.
        """
        if not self.states:
            return None
        try:
            state = next(iter(self.models.values())).make_state()
            for name, shape in self.states.items():
                value = state.read_state(name)
                if value.shape != shape:
                    raise ArtifactError(
                        f"{self.shard.path}: its state {name} has shape {shape_text(value.shape)}, but the "
                        f"manifest says {shape_text(shape)}; convert the model again"
                    )
                if value.any():
                    state.write_state(name, np.zeros(shape, np.float32))
        except AnespecError:
            raise
        # Core ML's errors arrive as RuntimeError, ValueError or plain Exception.
        except Exception as error:
            raise ArtifactError(f"{self.shard.path}: {error_sentence(str(error))}") from error
        return state

    def start(self, inputs: Inputs) -> None:
        """Keep the inputs for `finish`; see ShardRunner.

        A prediction holds the GIL, so to run it in a thread would gain nothing.
        """
        self._inputs = inputs

    def finish(self) -> Outputs:
        """Execute the pass; see ShardRunner.

        Raises:
            StateLostError: Core ML fails, or an output of a layer shard is not finite.
        """
        outputs = self._predict(self._inputs)
        if self.carries and not all(np.isfinite(value).all() for value in outputs.values.values()):
            raise self._lost(NOT_A_NUMBER)
        return outputs

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; the outputs are not checked to be finite. See ShardRunner, and `finish`."""
        outputs = self._predict(inputs)
        return {name: outputs.tensor(name) for name in self.outputs}

    def _predict(self, inputs: Inputs) -> CoreMLOutputs:
        width = row_count(inputs[HIDDEN_IN])
        model, layout = self._model(width), self.layouts.get(width, self.layouts.get(ANY_WIDTH, DECLARED))
        given: dict[str, NDArray[np.float16] | NDArray[np.int32]] = {}
        for spec in self.inputs:
            if spec.dtype == "int32":
                given[spec.name] = np.ascontiguousarray(inputs[spec.name], np.int32)
                continue
            value = np.asarray(inputs[spec.name], np.float16)
            if channels_of(spec.shape) is not None:
                value = laid_out(value, layout)
            given[spec.name] = np.ascontiguousarray(value)
        try:
            values = model.predict(given, self._state)
        # Core ML's errors arrive as RuntimeError, ValueError or plain Exception.
        except Exception as error:
            raise self._lost(str(error)) from error
        missing = [name for name in self.outputs if name not in values]
        if missing:
            raise ArtifactError(f"{self.shard.path}: has no output {missing[0]}; convert the model again")
        return CoreMLOutputs(values)

    def _model(self, width: int) -> LoadedModel:
        model = self.models.get(width, self.models.get(ANY_WIDTH))
        if model is None:
            raise ArtifactError(f"{self.shard.path}: has no function for passes of {width} rows")
        return model

    def _lost(self, text: str) -> StateLostError:
        self._state = self._new_state()
        return StateLostError(f"{self.shard.path}: {error_sentence(text)}")

    def read_state(self, name: str) -> Tensor:
        """Return a copy of a state; see ShardRunner. Raises StateLostError if Core ML fails."""
        with self._losing() as state:
            return state.read_state(name).astype(np.float16)

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner. Raises StateLostError if Core ML fails."""
        with self._losing() as state:
            state.write_state(name, np.array(value, dtype=np.float32, order="C"))

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of some slots; see ShardRunner. Costs a copy of the whole state."""
        return self.read_state(name)[:, :, first : first + count].copy()

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots; see ShardRunner. Costs two copies of the whole state."""
        state = self.read_state(name)
        state[:, :, first : first + value.shape[2]] = value
        self.write_state(name, state)

    @contextmanager
    def _losing(self) -> Iterator[ModelState]:
        """Yield the state for a call. If the call fails, replace the state and raise StateLostError."""
        if self._state is None:
            raise ArtifactError(f"{self.shard.path}: has no states")
        try:
            yield self._state
        except Exception as error:
            raise self._lost(str(error)) from error

    def close(self) -> None:
        """Release the models and their states."""
        self.models.clear()
        self._state = None
