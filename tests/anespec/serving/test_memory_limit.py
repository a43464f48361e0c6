"""The memory that a model takes is estimated from its manifest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anespec.manifests.schema import Manifest, WeightFormat
from anespec.manifests.store import Artifact
from anespec.models.memory_limit import memory_of


def in_palettes(manifest: Manifest) -> Any:
    """What is read of the manifest of the same model with half a byte for each number of a projection."""
    shards = []
    for shard in manifest.shards:
        small = [
            tensor.model_copy(
                update={"weights": WeightFormat.LUT4, "bytes": tensor.rows * tensor.columns // 2}
            )
            for tensor in shard.tensors
        ]
        saved = sum(tensor.bytes for tensor in shard.tensors) - sum(tensor.bytes for tensor in small)
        shards.append(shard.model_copy(update={"tensors": tuple(small), "bytes": shard.bytes - saved}))
    return SimpleNamespace(shards=shards, state_bytes=manifest.state_bytes, tokens=manifest.tokens)


def test_palettes_that_a_backend_looks_up_count_as_what_they_become(artifact: Path) -> None:
    """A daemon with a limit of memory would else load too many of them."""
    manifest = Artifact(artifact).manifest
    palettes = in_palettes(manifest)
    numbers = sum(t.rows * t.columns for shard in manifest.shards for t in shard.tensors)
    assert memory_of(palettes, "openvino") > 4 * numbers
    assert memory_of(palettes, "mlx") > 2 * numbers
    assert memory_of(palettes, "openvino") > memory_of(manifest, "openvino")
    assert memory_of(palettes, "coreml") < memory_of(manifest, "coreml")
