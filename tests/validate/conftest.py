"""Lets the tests of this folder share their helpers, and keeps tiny models on one thread."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from once import Once
from planted import EMBEDDED, STORIES, convert_once

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact


class Converted(dict[WeightFormat, Artifact]):
    """stories260K in each weight format, converted when it is first asked for."""

    def __init__(self, folders: pytest.TempPathFactory, once: Once) -> None:
        self.folders, self.once = folders, once

    def __missing__(self, weights: WeightFormat) -> Artifact:
        folder = self.folders.mktemp("stories")
        self[weights] = convert_once(self.once, folder, STORIES, weights, topology=(2, 2, 1), sequences=2)
        return self[weights]


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory, once: Once) -> dict[WeightFormat, Artifact]:
    return Converted(tmp_path_factory, once)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory, once: Once) -> Artifact:
    return convert_once(
        once, tmp_path_factory.mktemp("embedded"), EMBEDDED, WeightFormat.INT8_CHANNEL, target=Target.MAC
    )


@pytest.fixture
def embedded_cpu(tmp_path: Path, once: Once) -> Artifact:
    """With passes of up to 128 rows, and no verdicts."""
    return convert_once(once, tmp_path, EMBEDDED, WeightFormat.INT8_CHANNEL, context=256)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run torch on one thread for the length of a test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
