"""The calls to Core ML: compile, load, predict, states.

This thin layer exists only on macOS.

`CoreMLTools` is coremltools 9. Its classes handle arrays as follows (grade A, read in its sources
(models/model.py, models/_compiled_model.py, coremlpython):

- An fp16 input is widened to fp32 in Python (`_update_float16_multiarray_input_to_float32`), for which the
  dict it came in is written to; Core ML makes fp16 of it again. fp32 goes through without a copy. The array
  must be writable, or pybind11 refuses it.
- Outputs and `read_state` come back as fp32 copies, whose numbers are those of fp16.
- `write_state` takes fp32: fp16 is "value type not convertible". It and `read_state` move a whole state.
- A prediction holds Python's lock, so that nothing else runs in the process meanwhile.

None of it was run on a Mac by this project.
"""

import logging
import platform
import warnings
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from anespec.manifests.graph_choices import ReshapeHint
from anespec.system.interrupts import interrupts_held_back
from anespec.system.machine import system_build
from anespec.system.packages import missing_package

FIRST_MACOS = 15
"""States are known to Core ML from here on (A: Apple)."""

NEURAL_ENGINE = "MLNeuralEngineComputeDevice"


class ComputeUnits(StrEnum):
    """The processors on which Core ML may run a model, as named in the worker's messages."""

    CPU_AND_NE = "cpuAndNeuralEngine"
    CPU_ONLY = "cpuOnly"


class ModelState(Protocol):
    """coremltools' MLState. A call may raise anything."""

    def read_state(self, name: str) -> NDArray[Any]: ...
    def write_state(self, name: str, value: NDArray[Any]) -> None: ...


class LoadedModel(Protocol):
    """coremltools' CompiledMLModel: one function of a compiled model. A call may raise anything."""

    def make_state(self) -> ModelState: ...
    def predict(
        self, data: dict[str, NDArray[Any]], state: ModelState | None = None
    ) -> dict[str, NDArray[Any]]: ...


class CoreMLLibrary(Protocol):
    """The door to Core ML; a call may raise anything."""

    def version(self) -> str:
        """The library that compiles and executes: compiled models and verdicts hold for one library alone."""
        ...

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package; returns the .mlmodelc, which is `destination`."""
        ...

    def load(
        self,
        compiled: Path,
        function: str | None,
        units: ComputeUnits,
        hint: ReshapeHint = ReshapeHint.NONE,
    ) -> LoadedModel:
        """Load a function of a compiled model; None is the only one of a package without named functions.

        `hint` is what Core ML is told of passes whose shape changes.
        """
        ...


class CoreMLTools:
    """CoreMLLibrary by coremltools 9."""

    def version(self) -> str:
        """See CoreMLLibrary; known without loading anything."""
        return library_version()

    def compile(self, package: Path, destination: Path) -> Path:
        """See CoreMLLibrary."""
        return Path(coremltools().utils.compile_model(str(package), str(destination)))

    def load(
        self,
        compiled: Path,
        function: str | None,
        units: ComputeUnits,
        hint: ReshapeHint = ReshapeHint.NONE,
    ) -> LoadedModel:
        """See CoreMLLibrary. Core ML takes no hint for `frequent` shapes, which is its default."""
        ct = coremltools()
        hints = {} if hint is ReshapeHint.NONE else {"reshapeFrequency": ct.ReshapeFrequency[hint.title()]}
        model: LoadedModel = ct.models.CompiledMLModel(
            str(compiled),
            compute_units=ct.ComputeUnit[units.name],
            function_name=function,
            optimization_hints=hints or None,
        )
        return model


def library_version() -> str:
    """coremltools' version and the build of the system that Core ML is a part of."""
    return f"coremltools {version('coremltools')}, {system_build()}"


def unavailable() -> str | None:
    """Return the reason why Core ML is not available here, with the fix, as a clause; None if it is."""
    if platform.system() != "Darwin":
        return f"macOS {FIRST_MACOS} or later (this is {platform.system()}); use --backend openvino here"
    if int(platform.mac_ver()[0].partition(".")[0] or 0) < FIRST_MACOS:
        return f"macOS {FIRST_MACOS} or later, for models with states; upgrade the system or use openvino"
    return None


def has_neural_engine() -> bool:
    """Return whether this machine has a Neural Engine that Core ML can use; False if unknown."""
    if unavailable() is not None or missing_package("coremltools") is not None:
        return False
    try:
        devices = coremltools().models.compute_device.MLComputeDevice.get_all_compute_devices()
    # coremltools without its native library has no proxy to ask, and Core ML speaks through any exception.
    except Exception:
        return False
    return any(type(device).__name__ == NEURAL_ENGINE for device in devices)


@cache
def coremltools() -> Any:
    """coremltools, imported without its warnings about versions of torch and without losing a ^C."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with interrupts_held_back(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import coremltools as ct
    finally:
        logger.setLevel(level)
    return ct
