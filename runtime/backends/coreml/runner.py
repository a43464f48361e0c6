"""Runs a compiled shard with Core ML; its states are one MLState, which all of its functions share."""

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
"""The key of a model that runs passes of every width."""


@dataclass(frozen=True)
class CoreMLOutputs:
    """The results of a pass, in the fp32 that coremltools makes of fp16."""

    values: Mapping[str, NDArray[np.float32]]

    def tensor(self, name: str) -> Tensor:
        """A copy of an output; see Outputs."""
        return self.values[name].astype(np.float16)

    def lane(self, name: str, lane: int) -> Channels:
        """One lane of an output; see Outputs. Lanes lie interleaved, and a row of logits is read often."""
        return np.ascontiguousarray(row_of(self.values[name], lane))


class CoreMLRunner:
    """A ShardRunner over Core ML; caches that the host holds are inputs to it.

    coremltools moves a state as a whole only, so that reading or writing slots costs a copy of all of them,
    widened to fp32: 8 MB for a state of 2048 slots, 8 heads and 128 channels.

    After a failure in a pass nobody knows what the states hold: they are made anew, of zeros.
    """

    takes_homes = False
    """The masks are inputs of the shard."""

    partial_spans = False
    """The number of slots is fixed when a shard is compiled."""

    def __init__(
        self,
        shard: Shard,
        models: Mapping[int | None, LoadedModel],
        layouts: Mapping[int | None, ChannelLayout] = MappingProxyType({}),
    ) -> None:
        """`models` are loaded functions by the T that they run, or by ANY_WIDTH.

        `layouts` are those of their channel tensors, by the same keys, where they are not as declared.

        Raises:
            ArtifactError: the states are not as the manifest says.
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
        """A state of zeros, as Apple's header says of new ones (A); it is looked at all the same.

        Raises:
            ArtifactError: Core ML makes none, or it is not as the manifest says.
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
        # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
        except Exception as error:
            raise ArtifactError(f"{self.shard.path}: {error_sentence(str(error))}") from error
        return state

    def start(self, inputs: Inputs) -> None:
        """Note what `finish` is to run: a prediction holds Python up in any thread; see ShardRunner."""
        self._inputs = inputs

    def finish(self) -> Outputs:
        """Execute; see ShardRunner.

        Raises:
            StateLostError: Core ML fails, or a result that goes into later states is no number.
        """
        outputs = self._predict(self._inputs)
        if self.carries and not all(np.isfinite(value).all() for value in outputs.values.values()):
            raise self._lost(NOT_A_NUMBER)
        return outputs

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; results are returned unchecked. See ShardRunner, and `finish`."""
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
        # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
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
        """A copy of a state; see ShardRunner. Raises StateLostError where Core ML fails."""
        with self._losing() as state:
            return state.read_state(name).astype(np.float16)

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner. Raises StateLostError where Core ML fails."""
        with self._losing() as state:
            state.write_state(name, np.array(value, dtype=np.float32, order="C"))

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """A copy of some slots, which costs one of all of them; see ShardRunner."""
        return self.read_state(name)[:, :, first : first + count].copy()

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots, which costs two copies of all of them; see ShardRunner."""
        state = self.read_state(name)
        state[:, :, first : first + value.shape[2]] = value
        self.write_state(name, state)

    @contextmanager
    def _losing(self) -> Iterator[ModelState]:
        """Yield the state, for a call after whose failure the state's content is unknown."""
        if self._state is None:
            raise ArtifactError(f"{self.shard.path}: has no states")
        try:
            yield self._state
        except Exception as error:
            raise self._lost(str(error)) from error

    def close(self) -> None:
        """Let go of the models and their states."""
        self.models.clear()
        self._state = None
