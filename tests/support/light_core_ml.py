"""A CoreMLLibrary that computes nothing, for what happens around it; run, the child that runs load probes."""

import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_ml_faults import meet
from numpy.typing import NDArray

from anespec.manifests.channel_layout import row_count
from anespec.manifests.graph_choices import ReshapeHint
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLLibrary, LoadedModel, ModelState
from anespec.runtime.backends.coreml.load_probe import LoadProbe, Outcome
from anespec.runtime.backends.coreml.probe_process import tried
from anespec.runtime.backends.portable.mil_package import read_package
from anespec.runtime.backends.portable.package_server import PACKAGE_OF_COMPILED, followed

COMMAND = (sys.executable, __file__)

STALE = "stale"
"""A file in a compiled model with what an upgraded system says of it."""

Array = NDArray[Any]


class LightState:
    """An MLState that is remembered."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, ...]]) -> None:
        extra = 1 if meet("make_state", name) else 0
        self.values: dict[str, Array] = {
            state: np.zeros((*shape[:-1], shape[-1] + extra), np.float32) for state, shape in shapes.items()
        }

    def read_state(self, name: str) -> Array:
        return self.values[name].copy()

    def write_state(self, name: str, value: Array) -> None:
        self.values[name][...] = value


class LightModel:
    """A function whose results are zeros."""

    def __init__(self, compiled: Path, function: str | None) -> None:
        self.name = compiled.name
        read = read_package(followed(compiled)).functions[function or "main"]
        self.inputs = {name: read.types[name].shape for name in read.inputs}
        self.outputs = {name: read.types[name].shape for name in read.outputs}
        self.states = {name: read.types[name].fixed for name in read.states}

    def make_state(self) -> ModelState:
        return LightState(self.name, self.states)

    def predict(self, data: dict[str, Array], state: ModelState | None = None) -> dict[str, Array]:
        value = np.nan if meet("predict", self.name) else 0
        assert data.keys() == self.inputs.keys()
        rows = row_count(data["x"])
        return {
            name: np.full([rows if size is None else size for size in shape], value, np.float32)
            for name, shape in self.outputs.items()
        }


class LightCoreML:
    """Compiling makes a folder that names the package."""

    def __init__(self, release: str = "1") -> None:
        self.release = release
        self.compiled: list[str] = []

    def version(self) -> str:
        return f"light {self.release}"

    def compile(self, package: Path, destination: Path) -> Path:
        self.compiled.append(package.stem)
        destination.mkdir()
        (destination / PACKAGE_OF_COMPILED).write_text(str(package.absolute()))
        meet("compile", package)
        return destination

    def load(
        self,
        compiled: Path,
        function: str | None,
        units: ComputeUnits,
        hint: ReshapeHint = ReshapeHint.NONE,
    ) -> LoadedModel:
        if not compiled.is_dir():
            raise RuntimeError(f"Unable to load model: {compiled} does not exist")
        if (stale := compiled / STALE).exists():
            raise RuntimeError(stale.read_text())
        meet("load", compiled)
        return LightModel(compiled, function)


def meet_here(patch: pytest.MonkeyPatch, library: CoreMLLibrary) -> None:
    """Have load probes be made in this process, which spares the start of another."""

    def probes(asked: Sequence[LoadProbe], **_: object) -> Generator[Outcome, None, None]:
        for probe in asked:
            outcome = tried(probe, library)
            yield outcome
            if outcome.error is not None:
                return

    patch.setattr("anespec.runtime.backends.coreml.backend.run_probes", probes)


if __name__ == "__main__":
    from anespec.runtime.backends.coreml.probe_process import main

    main(LightCoreML())
