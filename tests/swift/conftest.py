"""The worker, built once and kept between runs; without Swift its tests are skipped."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from swift_build import built_worker

from anespec.runtime.backends.portable.package_server import Packages, listen


@pytest.fixture(scope="session")
def worker_binary() -> Path:
    """The worker's executable, for debugging, over the stand-in for Core ML."""
    if sys.platform == "darwin":
        pytest.skip("needs a machine without Core ML, where predictions are the portable backend's")
    return built_worker()


@pytest.fixture(scope="session")
def package_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of workers whose predictions this process computes, which has its imports done."""
    path = tmp_path_factory.mktemp("server") / "socket"
    thread = threading.Thread(target=listen, args=(Packages(), path), daemon=True)
    thread.start()
    yield {"ANESPEC_STANDIN_SERVER": str(path)}


@pytest.fixture(scope="session")
def package_child() -> dict[str, str]:
    """The environment of workers that start a process of their own for predictions."""
    return {"ANESPEC_STANDIN_PYTHON": sys.executable}
