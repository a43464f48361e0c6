"""The device without Core ML: OpenVINO runs the packages, and torch stands for the processor."""

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.residency import ShardComputePlan
from anespec.manifests.schema import Shard, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import OPENVINO, open_verifier
from anespec.runtime.backends.portable.package_server import (
    COMPILED,
    LIBRARY_VARIABLE,
    PACKAGE_OF_COMPILED,
    Library,
    PackagePredictor,
    PredictorState,
)
from anespec.runtime.backends.runner import Inputs
from anespec.runtime.backends.worker.backend import STAND_IN
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.passes import Verifier
from anespec.system.machine import machine_memory, machine_name, processors
from anespec.validate.selftest.devices.device import (
    DeviceFacts,
    DeviceState,
    NotHereError,
    Prediction,
    Units,
    worker_here,
)


class PortableModel:
    """A LoadedModel over the portable backend."""

    def __init__(self, predictor: PackagePredictor) -> None:
        self._predictor = predictor

    def make_state(self) -> DeviceState:
        """See LoadedModel."""
        return self._predictor.make_state()

    def predict(self, inputs: Inputs, state: DeviceState | None) -> Prediction:
        """See LoadedModel."""
        own = state if isinstance(state, PredictorState) else None
        began = time.perf_counter()
        outputs = self._predictor.predict(inputs, own)
        return Prediction(outputs, time.perf_counter() - began)

    def close(self) -> None:
        """Do nothing: the model holds only memory."""


class PortableDevice:
    """See Device."""

    def facts(self) -> DeviceFacts:
        """Return the facts of this machine and its libraries."""
        return DeviceFacts(
            name="portable",
            machine=machine_name(),
            system=f"{platform.system()} {platform.release()}",
            libraries=tuple(f"{name} {version(name)}" for name in ("openvino", "torch", "coremltools")),
            target=Target.CPU,
            engine=False,
            device="openvino",
            cpu="torch",
            processors=processors(),
            memory_bytes=machine_memory(),
        )

    def compile(self, package: Path, destination: Path) -> Path:
        """Write a folder that names the package, since there is nothing to compile."""
        compiled = destination / f"{package.stem}{COMPILED}"
        compiled.mkdir(parents=True, exist_ok=True)
        (compiled / PACKAGE_OF_COMPILED).write_text(str(package.resolve()))
        return compiled

    def load(self, compiled: Path, units: Units, function: str | None, hint: ReshapeHint) -> PortableModel:
        """Compile the package with the library."""
        library: Library = "openvino" if units is Units.DEVICE else "torch"
        return PortableModel(PackagePredictor(compiled, function, library, processors()))

    def plan(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        """Raise NotHereError: only Core ML makes plans."""
        raise NotHereError("only Core ML, on a Mac, plans where operations run")

    def worker(self, say: Callable[[str], None]) -> WorkerProgram:
        """Return the worker with its stand-in for Core ML, in which OpenVINO computes."""
        if platform.system() != "Linux":
            raise NotHereError("the worker runs what Core ML compiled; here the portable backend runs")
        program = worker_here(say)
        python = f"{STAND_IN}={sys.executable}"
        command = ("/usr/bin/env", python, f"{LIBRARY_VARIABLE}=openvino", *program.command)
        return replace(program, command=command)

    def built_worker(self) -> WorkerProgram | None:
        """Return None: OpenVINO computes behind the worker too, so its times come from this process."""
        return None

    def open(self, artifact: Artifact) -> Verifier:
        """Open the fast portable backend."""
        return open_verifier(artifact, OPENVINO)
