"""The request and the result of a first contact with a compiled shard, as processes exchange them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.coreml_errors import NOT_A_NUMBER
from anespec.manifests.residency import shape_text
from anespec.manifests.schema import Record
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLLibrary
from anespec.runtime.backends.masks import MASKED

Shape = tuple[int, ...]


class TriedPass(Record):
    """One prediction: a function (None: the only one), and the shapes of its inputs and outputs."""

    function: str | None
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]


class Contact(Record):
    """A compiled shard to be loaded and run once at each of its widths.

    `masks` are the inputs that have 0 for a visible slot and MASKED for others; the first slot is visible.
    `writes` are the inputs that say which slot a row writes, row t slot t: one-hot, or as integers [T].
    """

    shard: str
    compiled: str
    units: ComputeUnits
    passes: tuple[TriedPass, ...]
    states: Mapping[str, Shape]
    masks: tuple[str, ...]
    writes: tuple[str, ...]


class ContactList(Record):
    """The trials that a process runs, in this order."""

    contacts: tuple[Contact, ...]


class Outcome(Record):
    """The result of a contact: its duration, and Core ML's text if it failed.

    `by_itself` means that the process failed and not Core ML in it, which is no evidence on the shard.
    """

    error: str | None = None
    by_itself: bool = False
    seconds: float = 0.0


class UnexpectedShapeError(Exception):
    """A state or an output is not as the manifest says."""


def try_shard(contact: Contact, library: CoreMLLibrary) -> None:
    """Load a shard and run it once at each width, with one state for all of its functions.

    Raises:
        Exception: whatever Core ML raises, or a sentence about what it gave.
    """
    models = {
        function: library.load(Path(contact.compiled), function, contact.units)
        for function in dict.fromkeys(tried.function for tried in contact.passes)
    }
    first = next(iter(models.values()))
    state = first.make_state() if contact.states else None
    for name, shape in contact.states.items():
        assert state is not None
        found = state.read_state(name).shape
        if found != shape:
            raise UnexpectedShapeError(
                f"the state {name} has shape {shape_text(found)}, not {shape_text(shape)}; convert again"
            )
    for tried in contact.passes:
        outputs = models[tried.function].predict(made_up_inputs(contact, tried), state)
        for name, shape in tried.outputs.items():
            if name not in outputs or outputs[name].shape != shape:
                given = shape_text(outputs[name].shape) if name in outputs else "missing"
                raise UnexpectedShapeError(
                    f"the output {name} is {given}, not of shape {shape_text(shape)}; convert again"
                )
            if not np.isfinite(outputs[name]).all():
                raise FloatingPointError(f"{NOT_A_NUMBER}: {name}")


def made_up_inputs(contact: Contact, tried: TriedPass) -> dict[str, NDArray[np.float16] | NDArray[np.int32]]:
    """Rows of plain numbers, each of which writes a slot of its own and sees the first."""
    inputs: dict[str, NDArray[np.float16] | NDArray[np.int32]] = {}
    for name, shape in tried.inputs.items():
        if name in contact.writes and len(shape) == 1:
            inputs[name] = np.arange(*shape, dtype=np.int32)
            continue
        value = np.cos(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape).astype(np.float16)
        if name in contact.masks:
            value[...] = MASKED
            value[..., 0] = 0
        elif name in contact.writes:
            value[...] = 0
            for row in range(min(shape[-2:])):
                value[..., row, row] = 1
        inputs[name] = value
    return inputs
