"""Core ML's native part stood in for, so that coremltools' own classes run on any machine.

What coremltools asks of its native library (`libcoremlpython`, absent outside macOS) is answered here: models
are executed by the portable backend, plans are made from packages. Arrays are as picky as there: fp32 in,
writable, a dict that may be written to; fp32 out. Run, this is the child that runs load probes.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from core_ml_faults import meet
from numpy.typing import NDArray

from anespec.manifests.residency import Device
from anespec.runtime.backends.coreml import library
from anespec.runtime.backends.coreml.library import coremltools
from anespec.runtime.backends.portable.package_server import (
    PACKAGE_OF_COMPILED,
    PackagePredictor,
    PredictorState,
    followed,
)
from anespec.system import machine

COMMAND = (sys.executable, __file__)
MACOS = "15.5"

Array = NDArray[Any]


class NativeState:
    """The proxy of an MLState."""

    def __init__(self, state: PredictorState) -> None:
        self.state = state

    def read_state(self, name: str) -> Array:
        return self.state.read(name).astype(np.float32)

    def write_state(self, name: str, value: Array) -> None:
        self.state.write(name, as_multi_array(value))


class NativeModel:
    """The proxy of a loaded model, `_MLModelProxy`."""

    predictions = 0
    hints: ClassVar[list[dict[str, str]]] = []

    def __init__(
        self, path: str, compute_units: str, function: str, hints: Mapping[str, str], asset: object
    ) -> None:
        assert compute_units in ("CPU_AND_NE", "CPU_ONLY")
        type(self).hints.append(dict(hints or {}))
        meet("load", path)
        self.path = Path(path)
        self.predictor = PackagePredictor(self.path, function or None)

    def newState(self) -> NativeState:
        return NativeState(self.predictor.make_state())

    def predict(self, data: dict[str, Array], state: NativeState | None) -> dict[str, Array]:
        type(self).predictions += 1
        strange = meet("predict", self.path)
        inputs = {name: as_multi_array(value) for name, value in data.items()}
        found = self.predictor.predict(inputs, state.state if state else None)
        outputs = {name: value.astype(np.float32) for name, value in found.items()}
        if strange:
            next(iter(outputs.values()))[...] = np.nan
        return outputs

    def get_compiled_model_path(self) -> str:
        return str(self.path)

    @staticmethod
    def compileModel(package: str) -> str:
        compiled = Path(tempfile.mkdtemp()) / f"{Path(package).stem}.mlmodelc"
        compiled.mkdir()
        meet("compile", package)
        (compiled / PACKAGE_OF_COMPILED).write_text(str(Path(package).absolute()))
        return str(compiled)

    @staticmethod
    def get_all_compute_devices() -> list[Any]:
        from plans import device

        return [device(Device.CPU), device(Device.GPU), device(Device.ANE)]

    @staticmethod
    def get_compute_plan(compiled: str, compute_units: str) -> Any:
        from plans import blocks_of, everything_on, plan_of

        from anespec.validate.residency.shard_view import view_package

        package = followed(Path(compiled))
        return plan_of(blocks_of(view_package(package, "", "", 1)), everything_on(Device.ANE))


class MacPlatform:
    """What `platform` says on a Mac; only our own modules hear it, since libraries load files by it."""

    @staticmethod
    def system() -> str:
        return "Darwin"

    @staticmethod
    def machine() -> str:
        return "arm64"

    @staticmethod
    def processor() -> str:
        return "arm"

    @staticmethod
    def mac_ver() -> tuple[str, tuple[str, str, str], str]:
        return MACOS, ("", "", ""), "arm64"


def as_multi_array(value: Array) -> NDArray[np.float16] | NDArray[np.int32]:
    """What pybind11 and Core ML make of an array: no fp16, and nothing that cannot be written to."""
    if value.dtype not in (np.float32, np.float64, np.int32, np.int8) or not value.flags.writeable:
        raise RuntimeError("value type not convertible")
    return value if value.dtype == np.int32 else value.astype(np.float16)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Have coremltools, and what of ours asks for the system, believe in a Mac with a Neural Engine."""
    ct = coremltools()
    native = ModuleType("coremltools.libcoremlpython")
    native._MLModelProxy = NativeModel  # type: ignore[attr-defined]
    patch.setitem(sys.modules, native.__name__, native)
    models = ct.models
    for module in (models.model, models._compiled_model, models.compute_plan, models.compute_device):
        patch.setattr(module, "_MLModelProxy", NativeModel)
    version = tuple(map(int, MACOS.split(".")))
    for module in (models.model, models._compiled_model, models.utils):
        patch.setattr(module, "_macos_version", lambda: version)
    for module in (models.model, models.utils):
        patch.setattr(module, "_is_macos", lambda: True)
    for module in (machine, library):
        patch.setattr(module, "platform", MacPlatform)


if __name__ == "__main__":
    from anespec.runtime.backends.coreml.library import CoreMLTools
    from anespec.runtime.backends.coreml.probe_process import main

    stand_in(pytest.MonkeyPatch())
    main(CoreMLTools())
