"""The seam to what executes packages: compile, load, plan, predict with states, and how long it took."""

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
    """Where a model may run: on what is tested, or on the same machine's processor alone."""

    DEVICE = "device"
    CPU = "cpu"


class NotHereError(AnespecError):
    """This device cannot do it, whatever the package; the sentence says why."""


def worker_here(say: Callable[[str], None]) -> WorkerProgram:
    """The worker as this machine builds it; see Device."""
    try:
        return build_worker(say)
    except MissingPackageError as error:
        raise NotHereError(str(error)) from None


class DeviceFacts(Record):
    """What a report says of a device. `engine` is whether it has a Neural Engine whose residency counts.

    `device` and `cpu` say in a few words what the two units are, e.g. `Neural Engine`, `CPU only`.
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
        """A copy of one, bit for bit."""
        ...

    def write(self, name: str, value: Tensor) -> None:
        """Replace one."""
        ...


class LoadedModel(Protocol):
    """One function of a package, loaded. Any method may raise whatever the library raises."""

    def make_state(self) -> DeviceState:
        """States of zeros."""
        ...

    def predict(self, inputs: Inputs, state: DeviceState | None) -> Prediction:
        """Execute once, `state` written to; None where the function has no states."""
        ...

    def close(self) -> None:
        """Release memory."""
        ...


class Device(Protocol):
    """What executes packages. A call may raise anything, never return, or end the process."""

    def facts(self) -> DeviceFacts:
        """What it is."""
        ...

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package; returns the compiled model, a folder at or below `destination`."""
        ...

    def load(self, compiled: Path, units: Units, function: str | None, hint: ReshapeHint) -> LoadedModel:
        """Load one function; None for the package's only or default one. `hint` is for Core ML alone."""
        ...

    def plan(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        """Where each operation of the shard would run, by its compiled model that is there.

        Raises:
            NotHereError: only Core ML makes plans.
        """
        ...

    def worker(self, say: Callable[[str], None]) -> WorkerProgram:
        """The native worker, built where it was not; `say` hears how far that is.

        Raises:
            NotHereError: there is nothing to build it with.
            AnespecError: it does not compile.
        """
        ...

    def built_worker(self) -> WorkerProgram | None:
        """The native worker, where it was built before."""
        ...

    def open(self, artifact: Artifact) -> Verifier:
        """The whole artifact, as the runtime would open it on this device."""
        ...
