"""Core ML as the device, through coremltools' classes. This project has not run any of it on a Mac.

Times are of `predict` alone, which includes coremltools' copies of inputs and outputs. Inputs are widened to
fp32, as coremltools needs them, before the clock starts.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.residency import ShardComputePlan
from anespec.manifests.schema import Shard, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import COREML, open_verifier
from anespec.runtime.backends.coreml.library import (
    ComputeUnits,
    CoreMLLibrary,
    CoreMLTools,
    ModelState,
    has_neural_engine,
)
from anespec.runtime.backends.coreml.library import LoadedModel as LibraryModel
from anespec.runtime.backends.runner import Inputs
from anespec.runtime.backends.worker.build import built_worker
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.passes import Verifier
from anespec.system.machine import machine_memory, machine_name, processors, system_build
from anespec.validate.residency.coremltools_plan import PlanningTools
from anespec.validate.residency.worker_plan import WorkerPlans
from anespec.validate.selftest.devices.device import (
    DeviceFacts,
    DeviceState,
    Prediction,
    Tensor,
    Units,
    worker_here,
)

COMPUTE_UNITS = {Units.DEVICE: ComputeUnits.CPU_AND_NE, Units.CPU: ComputeUnits.CPU_ONLY}


class CoreMLState:
    """A DeviceState over an MLState."""

    def __init__(self, state: ModelState) -> None:
        self.state = state

    def read(self, name: str) -> Tensor:
        """See DeviceState."""
        return self.state.read_state(name).astype(np.float16)

    def write(self, name: str, value: Tensor) -> None:
        """See DeviceState."""
        self.state.write_state(name, np.array(value, dtype=np.float32, order="C"))


class CoreMLModel:
    """A LoadedModel over coremltools' CompiledMLModel."""

    def __init__(self, model: LibraryModel) -> None:
        self._model = model

    def make_state(self) -> DeviceState:
        """See LoadedModel."""
        return CoreMLState(self._model.make_state())

    def predict(self, inputs: Inputs, state: DeviceState | None) -> Prediction:
        """See LoadedModel."""
        given = {
            name: np.array(value, np.int32 if value.dtype == np.int32 else np.float32, order="C")
            for name, value in inputs.items()
        }
        own = state.state if isinstance(state, CoreMLState) else None
        began = time.perf_counter()
        found = self._model.predict(given, own)
        seconds = time.perf_counter() - began
        return Prediction({name: value.astype(np.float16) for name, value in found.items()}, seconds)

    def close(self) -> None:
        """Release the model; Core ML frees it with its last reference."""
        del self._model


class CoreMLDevice:
    """See Device."""

    def __init__(self, core_ml: CoreMLLibrary | None = None) -> None:
        self._core_ml = core_ml or CoreMLTools()

    def facts(self) -> DeviceFacts:
        """Return the facts of this Mac."""
        return DeviceFacts(
            name="coreml",
            machine=machine_name(),
            system=system_build(),
            libraries=(f"coremltools {version('coremltools')}",),
            target=Target.MAC,
            engine=(engine := has_neural_engine()),
            device="Neural Engine and CPU" if engine else "CPU, as there is no Neural Engine",
            cpu="CPU",
            processors=processors(),
            memory_bytes=machine_memory(),
        )

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile permanently; the destination folder must not exist, as Core ML requires."""
        return self._core_ml.compile(package, destination / f"{package.stem}.mlmodelc")

    def load(self, compiled: Path, units: Units, function: str | None, hint: ReshapeHint) -> CoreMLModel:
        """Load the model; the first load specialises it for the Neural Engine, which takes minutes."""
        return CoreMLModel(self._core_ml.load(compiled, function, COMPUTE_UNITS[units], hint))

    def plan(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        """Return Core ML's own plan at the shape that runs, from the worker if it was built.

        Otherwise coremltools plans in this process, which is the trial's own, and only the default function.
        """
        if (program := built_worker()) is not None:
            return WorkerPlans(program).plan_compiled(artifact, shard, compiled)
        return PlanningTools().plan_compiled(artifact, shard, compiled)

    def worker(self, say: Callable[[str], None]) -> WorkerProgram:
        """Build the worker with Swift, which comes with Xcode or its command line tools."""
        return worker_here(say)

    def built_worker(self) -> WorkerProgram | None:
        """Return the worker of this installation."""
        return built_worker()

    def open(self, artifact: Artifact) -> Verifier:
        """Open the backend that runs on a Mac without the worker."""
        return open_verifier(artifact, COREML)
