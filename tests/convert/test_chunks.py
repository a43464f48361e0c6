"""Chunks of recurrent layers: defaults by layers and target, and options where there are no such layers."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from family_files import FAMILIES

from anespec.cli.verbs.convert import convert
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.chunks import ChunkPlan
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.graph_choices import ChunkSolve
from anespec.manifests.schema import Target
from anespec.system.errors import RequestError

BROADCAST, PRODUCTS = ChunkSolve.BROADCAST, ChunkSolve.PRODUCTS


def chunks_of(family: str, **options: Any) -> ChunkPlan | None:
    with GGUFFile(FAMILIES / f"{family}.gguf") as file:
        return ConversionPlan(SourceModel(file), ConvertOptions(**options)).chunks


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("qwen35", {"target": Target.CPU}, ChunkPlan(32, PRODUCTS)),
        ("qwen35", {"target": Target.MAC}, ChunkPlan(32, BROADCAST)),
        ("qwen35", {"target": Target.IPHONE, "chunk": 16}, ChunkPlan(16, BROADCAST)),
        ("qwen35", {"target": Target.MAC, "chunk_solve": PRODUCTS}, ChunkPlan(32, PRODUCTS)),
        ("mamba2", {"target": Target.MAC}, ChunkPlan(64, None)),
        ("granitehybrid", {"target": Target.CPU, "chunk": 8}, ChunkPlan(8, None)),
        ("lfm2", {}, None),
    ],
)
def test_chunks_by_layers_target_and_options(family: str, options: Any, expected: ChunkPlan | None) -> None:
    assert chunks_of(family, **options) == expected


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("qwen3", {"chunk": 32}, "--chunk is for models with recurrent layers"),
        ("lfm2", {"chunk": 32}, "--chunk is for models with recurrent layers"),
        ("mamba2", {"chunk_solve": PRODUCTS}, "--chunk-solve is for models with gated delta nets"),
        ("qwen3", {"chunk_solve": PRODUCTS}, "--chunk-solve is for models with gated delta nets"),
    ],
)
def test_options_for_layers_that_are_not_there_are_refused(family: str, options: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        chunks_of(family, **options)


@pytest.mark.parametrize("positions", [4, 12, 72, 0, -8])
def test_only_multiples_of_eight_up_to_64_are_taken(positions: int, tmp_path: Path) -> None:
    asked = [str(FAMILIES / "mamba2.gguf"), "--chunk", str(positions), "-o", str(tmp_path / "m")]
    result = CliRunner().invoke(convert, asked)
    assert result.exit_code != 0
    assert not [*tmp_path.iterdir()]
    assert "8" in f"{result.output}{result.exception}"
