"""The interface of a device that executes packages: compile, load, plan, predict with states, and time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.residency import ShardComputePlan
from anespec.manifests.schema import Record, Shard, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends.runner import Inputs
from anespec.runtime.backends.worker.build import build_worker
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.passes import Verifier
from anespec.system.errors import AnespecError, MissingPackageError

Tensor = NDArray[np.float16]


class Units(StrEnum):
    """Where a model may run: on the tested device, or on the same machine's processor alone."""

    DEVICE = "device"
    CPU = "cpu"


class NotHereError(AnespecError):
    """This device cannot do it for any package; the message says why."""


def worker_here(say: Callable[[str], None]) -> WorkerProgram:
    """Build the worker on this machine; see Device."""
    try:
        return build_worker(say)
    except MissingPackageError as error:
        raise NotHereError(str(error)) from None


class DeviceFacts(Record):
    """The description of a device in a report. `engine` is whether it has a Neural Engine to be judged.

    `device` and `cpu` name the two units in a few words, e.g. `Neural Engine`, `CPU only`.
    """

    name: str
    machine: str
    system: str
    libraries: tuple[str, ...]
    target: Target
    engine: bool
    device: str
    cpu: str
    processors: int
    memory_bytes: int


@dataclass(frozen=True)
class Prediction:
    """The outputs of one prediction by name, and the seconds that it took."""

    outputs: Mapping[str, Tensor]
    seconds: float


class DeviceState(Protocol):
    """The states of one sequence of predictions."""

    def read(self, name: str) -> Tensor:
        """Return a copy of one state, bit for bit."""
        ...

    def write(self, name: str, value: Tensor) -> None:
        """Replace one state."""
        ...


class LoadedModel(Protocol):
    """One loaded function of a package. Any method may raise any exception of the library."""

    def make_state(self) -> DeviceState:
        """Return states of zeros."""
        ...

    def predict(self, inputs: Inputs, state: DeviceState | None) -> Prediction:
        """Execute once and update `state`; it is None if the function has no states."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...


class Device(Protocol):
    """A device that executes packages. A call may raise any exception, never return, or end the process."""

    def facts(self) -> DeviceFacts:
        """Return the facts of the device."""
        ...

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package; return the compiled model, a folder at or below `destination`."""
        ...

    def load(self, compiled: Path, units: Units, function: str | None, hint: ReshapeHint) -> LoadedModel:
        """Load one function; None loads the package's only or default one. Only Core ML uses `hint`."""
        ...

    def plan(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        """Return the device of each operation of the shard, from its compiled model.

        Raises:
            NotHereError: only Core ML makes plans.
        """
        ...

    def worker(self, say: Callable[[str], None]) -> WorkerProgram:
        """Return the native worker, and build it if needed; `say` is called with the progress.

        Raises:
            NotHereError: the tools to build it are missing.
            AnespecError: it does not compile.
        """
        ...

    def built_worker(self) -> WorkerProgram | None:
        """Return the native worker if it was built before."""
        ...

    def open(self, artifact: Artifact) -> Verifier:
        """Open the whole artifact as the runtime would on this device."""
        ...
