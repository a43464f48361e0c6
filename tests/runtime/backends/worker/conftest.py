"""A small artifact of several shards, and the real worker to run it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from converting import build
from swift_build import built_worker
from tiny_model import TinyModel, write_gguf
from workers import STAND_IN_SERVER

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends.portable.package_server import Packages, listen
from anespec.runtime.backends.worker.process import WorkerProgram


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Two layer shards, three head shards, two sequences of 64 tokens."""
    folder = tmp_path_factory.mktemp("worker")
    source = write_gguf(folder / "tiny.gguf", TinyModel())
    built = build(
        source,
        folder / "m.anespec",
        sequences=2,
        topology=(1, 1),
        head_shards=3,
        target=Target.CPU,
        weights=WeightChoice(WeightFormat.FP16),
    )
    return Artifact(built.path)


@pytest.fixture(scope="session")
def swift_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProgram]:
    """The real worker, whose predictions this process computes; skips without Swift."""
    executable = built_worker()
    path = listening(tmp_path_factory, Packages())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STAND_IN_SERVER, str(path))
        yield WorkerProgram((str(executable),), "by hand", compared=False)


@pytest.fixture
def openvino_computes(
    tmp_path_factory: pytest.TempPathFactory, swift_worker: WorkerProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions of the worker are OpenVINO's, which takes no write mask of zeros."""
    monkeypatch.setenv(STAND_IN_SERVER, str(listening(tmp_path_factory, Packages("openvino"))))


def listening(folders: pytest.TempPathFactory, packages: Packages) -> Path:
    """The socket of a server in this process."""
    path = folders.mktemp("server") / "socket"
    threading.Thread(target=listen, args=(packages, path), daemon=True).start()
    return path
