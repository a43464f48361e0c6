"""A small artifact of several shards."""

import pytest
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice


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
