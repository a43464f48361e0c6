"""The calls to Core ML: compile, load, predict, states.

This thin layer exists only on macOS.

`CoreMLTools` is coremltools 9. Its classes handle arrays as follows (grade A, read in its sources:
models/model.py, models/_compiled_model.py, coremlpython):

- An fp16 input is widened to fp32 in Python (`_update_float16_multiarray_input_to_float32`), which changes
  the dict of inputs; Core ML converts it back to fp16. An fp32 input is passed without a copy. The array must
  be writable, or pybind11 refuses it.
- Outputs and the results of `read_state` are fp32 copies of fp16 values.
- `write_state` takes fp32; for fp16 it raises "value type not convertible". `write_state` and `read_state`
  copy a whole state.
- A prediction holds the GIL, so no other thread of the process runs meanwhile.

This project has never run any of it on a Mac.
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
"""The first macOS whose Core ML supports models with states (grade A: Apple)."""

NEURAL_ENGINE = "MLNeuralEngineComputeDevice"


class ComputeUnits(StrEnum):
    """The processors on which Core ML may run a model, as named in the worker's messages."""

    CPU_AND_NE = "cpuAndNeuralEngine"
    CPU_ONLY = "cpuOnly"


class ModelState(Protocol):
    """The MLState of coremltools. A call may raise any exception."""

    def read_state(self, name: str) -> NDArray[Any]: ...
    def write_state(self, name: str, value: NDArray[Any]) -> None: ...


class LoadedModel(Protocol):
    """coremltools' CompiledMLModel: one function of a compiled model. A call may raise any exception."""

    def make_state(self) -> ModelState: ...
    def predict(
        self, data: dict[str, NDArray[Any]], state: ModelState | None = None
    ) -> dict[str, NDArray[Any]]: ...


class CoreMLLibrary(Protocol):
    """The calls to Core ML that this backend needs. A call may raise any exception."""

    def version(self) -> str:
        """Return the library's version; compiled models and verdicts are valid for one version."""
        ...

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package to `destination`, an .mlmodelc; return it."""
        ...

    def load(
        self,
        compiled: Path,
        function: str | None,
        units: ComputeUnits,
        hint: ReshapeHint = ReshapeHint.NONE,
    ) -> LoadedModel:
        """Load a function of a compiled model; None is the only function of a package that names none.

        `hint` tells Core ML how often the shapes of the inputs change.
        """
        ...


class CoreMLTools:
    """A CoreMLLibrary that calls coremltools 9."""

    def version(self) -> str:
        """Return the version without loading coremltools; see CoreMLLibrary."""
        return library_version()

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile a package; see CoreMLLibrary."""
        return Path(coremltools().utils.compile_model(str(package), str(destination)))

    def load(
        self,
        compiled: Path,
        function: str | None,
        units: ComputeUnits,
        hint: ReshapeHint = ReshapeHint.NONE,
    ) -> LoadedModel:
        """Load a function; see CoreMLLibrary. `frequent` shapes are Core ML's default and need no hint."""
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
    """Return coremltools' version, and the build of macOS, which Core ML is part of."""
    return f"coremltools {version('coremltools')}, {system_build()}"


def unavailable() -> str | None:
    """Return what Core ML needs and lacks here, with the fix, as a clause; None if it is available."""
    if platform.system() != "Darwin":
        return f"macOS {FIRST_MACOS} or later (this is {platform.system()}); use --backend openvino here"
    if int(platform.mac_ver()[0].partition(".")[0] or 0) < FIRST_MACOS:
        return f"macOS {FIRST_MACOS} or later, for models with states; upgrade it or use --backend openvino"
    return None


def has_neural_engine() -> bool:
    """Return whether this machine has a Neural Engine that Core ML can use; False if unknown."""
    if unavailable() is not None or missing_package("coremltools") is not None:
        return False
    try:
        devices = coremltools().models.compute_device.MLComputeDevice.get_all_compute_devices()
    # coremltools lacks the proxy if its native library is missing, and Core ML may raise any exception.
    except Exception:
        return False
    return any(type(device).__name__ == NEURAL_ENGINE for device in devices)


@cache
def coremltools() -> Any:
    """Import coremltools without its warnings about torch's version, and keep Python's handling of ^C."""
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
