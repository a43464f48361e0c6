"""Core ML itself on a Mac's CPU, and stood in for elsewhere: the same tests for both.

Those that need Core ML carry the mark `mac` (`pytest -m mac`). A hosted Mac is a virtual machine without a
Neural Engine, so they say how Core ML behaves and computes, and nothing of where it would run or how fast.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from converting import build
from light_core_ml import meet_here
from mac_core_ml import BOTH, Built, CoreMLHere, require
from standin_core_ml import stand_in
from swift_build import built_worker
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.library import CoreMLTools
from anespec.runtime.backends.portable.package_server import Packages, listen
from anespec.runtime.backends.worker.build import build_worker
from anespec.runtime.backends.worker.process import WorkerProgram

MODEL = TinyModel(d=128, heads=4, kv_heads=2, head_dim=32, ff=256)
"""Two layers whose states are 32 wide, of which others measured that it works."""


@pytest.fixture(params=BOTH)
def core_ml(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CoreMLHere:
    """Core ML through coremltools."""
    require(request.param)
    if not request.param:
        stand_in(monkeypatch)
        meet_here(monkeypatch, CoreMLTools())
    return CoreMLHere(CoreMLTools(), request.param)


@pytest.fixture(scope="module", params=BOTH)
def worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreMLHere]:
    """Core ML through the native worker, which is built where it was not."""
    require(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            build_worker(lambda _: None)
        else:
            executable = built_worker()
            path = tmp_path_factory.mktemp("server") / "socket"
            threading.Thread(target=listen, args=(Packages(), path), daemon=True).start()
            patch.setenv("ANESPEC_STANDIN_SERVER", str(path))
            patch.setenv("ANESPEC_STANDIN_PYTHON", sys.executable)
            patch.setenv("ANESPEC_WORKER", str(executable))
        yield CoreMLHere(CoreMLTools(), request.param)


@pytest.fixture
def program(worker: CoreMLHere) -> WorkerProgram:
    """The worker's executable."""
    return build_worker(lambda _: None)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Makes an artifact for a Mac of two layer shards, once for each choice of options."""
    folder = tmp_path_factory.mktemp("mac")
    source = write_gguf(folder / "tiny.gguf", MODEL)
    made: dict[str, Artifact] = {}

    def make(**options: Any) -> Artifact:
        name = "-".join(map(str, options.values())) or "usual"
        if name not in made:
            path: Path = folder / f"{name}.anespec"
            build(source, path, target=Target.MAC, context=64, topology=(1, 1), **options)
            made[name] = Artifact(path)
        return made[name]

    return make
