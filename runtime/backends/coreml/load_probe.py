"""Load probes: load a compiled shard and run it once at each width, since Core ML may refuse or crash.

This module has the request and the result, as processes exchange them in JSON, and the probe itself.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.schema import BEST, BEST_CHANNELS, Count, Record
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLLibrary, LoadedModel
from anespec.runtime.backends.coreml.start_times import FirstPass, StartTimes
from anespec.runtime.backends.pass_inputs import MASKED, first_places, first_slots
from anespec.system.coreml_errors import NOT_A_NUMBER
from anespec.system.formatting import shape_text

Shape = tuple[int, ...]


class TriedPass(Record):
    """One prediction of a load probe: the function (None: the only one), T, and the tensors' shapes."""

    function: str | None
    rows: Count = 1
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]


class LoadProbe(Record):
    """A compiled shard to be loaded and run once at each of its widths.

    `masks` are the attention masks among the inputs; every row sees the first slot. `writes` are the inputs
    for the slots that rows write, one-hot or as integers [T]; row t writes slot t. `places` are the inputs by
    which rows find themselves in a pool of chunks, `live` those of its slots in use, which are all.
    """

    shard: str
    compiled: str
    units: ComputeUnits
    hint: ReshapeHint = ReshapeHint.NONE
    passes: tuple[TriedPass, ...]
    states: Mapping[str, Shape]
    masks: tuple[str, ...]
    writes: tuple[str, ...]
    places: tuple[str, ...] = ()
    live: tuple[str, ...] = ()


class ProbeList(Record):
    """The load probes that a process runs, in this order."""

    probes: tuple[LoadProbe, ...]


class Outcome(Record):
    """The result of a load probe: its duration, and Core ML's error if it failed.

    `by_itself` means that the process failed and not Core ML, so the error says nothing about the shard.
    `first` has the start times in the first process that loaded the compiled shard, `last` those in the
    latest process.
    """

    error: str | None = None
    by_itself: bool = False
    seconds: float = 0.0
    first: StartTimes | None = None
    last: StartTimes | None = None


class UnexpectedShapeError(Exception):
    """A state or an output has another shape than the manifest says."""


def start_shard(
    probe: LoadProbe, library: CoreMLLibrary
) -> tuple[Mapping[str | None, LoadedModel], StartTimes]:
    """Load a shard and run it once at each width; return its functions by name, and the times.

    Raises:
        Exception: any exception of Core ML, or one that describes a wrong result.
    """
    began = time.monotonic()
    models = {
        function: library.load(Path(probe.compiled), function, probe.units, probe.hint)
        for function in dict.fromkeys(tried.function for tried in probe.passes)
    }
    loaded = time.monotonic() - began
    return models, StartTimes(load_seconds=loaded, passes=run_first_passes(probe, models))


def run_first_passes(probe: LoadProbe, models: Mapping[str | None, LoadedModel]) -> tuple[FirstPass, ...]:
    """Run loaded functions once at each width, with one state for all; return the times.

    Raises:
        Exception: any exception of Core ML, or one that describes a wrong result.
    """
    passes = []
    first = next(iter(models.values()))
    state = first.make_state() if probe.states else None
    for name, shape in probe.states.items():
        assert state is not None
        found = state.read_state(name).shape
        if found != shape:
            raise UnexpectedShapeError(
                f"the state {name} has shape {shape_text(found)}, not {shape_text(shape)}; convert again"
            )
    for tried in probe.passes:
        inputs = made_up_inputs(probe, tried)
        began = time.monotonic()
        outputs = models[tried.function].predict(inputs, state)
        passes.append(FirstPass(rows=tried.rows, seconds=time.monotonic() - began))
        for name, shape in tried.outputs.items():
            if name not in outputs or outputs[name].shape != shape:
                given = shape_text(outputs[name].shape) if name in outputs else "missing"
                raise UnexpectedShapeError(
                    f"the output {name} is {given}, not of shape {shape_text(shape)}; convert again"
                )
            # A best token is finite even if its logits are NaN; its last channel is 1 if all were numbers.
            is_number = outputs[name][:, BEST_CHANNELS - 1 :: BEST_CHANNELS] == 1 if name == BEST else True
            if not np.isfinite(outputs[name]).all() or not np.all(is_number):
                raise FloatingPointError(f"{NOT_A_NUMBER}: {name}")
    return tuple(passes)


def made_up_inputs(probe: LoadProbe, tried: TriedPass) -> dict[str, NDArray[np.float16] | NDArray[np.int32]]:
    """Return inputs with constant rows: row t writes slot t, and every row sees the first slot."""
    inputs: dict[str, NDArray[np.float16] | NDArray[np.int32]] = {}
    for name, shape in tried.inputs.items():
        if name in probe.writes:
            inputs[name] = first_slots(shape)
            continue
        if name in probe.places:
            inputs[name] = first_places(shape)
            continue
        if name in probe.live:
            inputs[name] = np.ones(shape, np.float16)
            continue
        value = np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape).astype(np.float16)
        if name in probe.masks:
            value[...] = MASKED
            value[..., 0] = 0
        inputs[name] = value
    return inputs
