"""A package is what coremltools itself would write: its manifest, its metadata, its last operation."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from converting import build
from graphs import layers
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec import __version__
from anespec.convert.graph.builder import ct
from anespec.convert.package import write_package
from anespec.manifests.schema import AttentionShape, HeadShard
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import HEAD, kind_of
from anespec.runtime.backends.portable.mil_package import read_model, read_package

ENDINGS = ("gemma2", "gemma3", "gemma4", "gemma4-ple", "granite", "olmo2", "qwen2")
"""Of what the families end layers and heads with: scales, norms, embeddings per layer, capped logits."""
COREMLTOOLS = "com.github.apple.coremltools."


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and what it holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def materialise(package: Path, folder: Path) -> None:
    """Make its functions static, as a person does to ask for a plan at one T."""
    opened = ct.models.MLModel(str(package), skip_model_load=True)
    inputs = opened.get_spec().description.input
    shapes = {value.name: tuple(value.type.multiArrayType.shape) for value in inputs}
    ct.utils.materialize_dynamic_shape_mlmodel(opened, {"static": shapes}, str(folder / "static.mlpackage"))


OPENINGS: dict[str, Callable[[Path, Path], Any]] = {
    "spec": lambda package, _: ct.utils.load_spec(str(package)),
    "model": lambda package, _: ct.models.MLModel(str(package), skip_model_load=True),
    "saved elsewhere": lambda package, folder: ct.models.MLModel(str(package), skip_model_load=True).save(
        str(folder / "copy.mlpackage")
    ),
    "its weights": lambda package, _: ct.optimize.coreml.get_weights_metadata(
        ct.models.MLModel(str(package), skip_model_load=True)
    ),
    "materialised": materialise,
}
"""What people do with a package in Python."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return build(write_gguf(folder / "tiny.gguf", TinyModel(layers=2)), folder / "m.anespec").path


@pytest.mark.fast_only("model")
@pytest.mark.filterwarnings("ignore:Some dimensions in the input shape are unknown")
@pytest.mark.parametrize(
    "opening", slow_but(OPENINGS, *(name for name in OPENINGS if name != "materialised"))
)
def test_coremltools_leaves_every_byte_of_a_shard(whole: Path, opening: str, tmp_path: Path) -> None:
    artifact = Artifact(Path(shutil.copytree(whole, tmp_path / "m.anespec")))
    before = everything(artifact.root)
    for shard in artifact.manifest.shards:
        (elsewhere := tmp_path / Path(shard.path).stem).mkdir()
        OPENINGS[opening](artifact.root / shard.path, elsewhere)
    assert everything(artifact.root) == before
    for shard in artifact.manifest.shards:
        assert Artifact(artifact.root).shard_path(shard).is_dir(), "the hash still holds"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same program written here, and by `ct.convert` without passes."""
    folder = tmp_path_factory.mktemp("both")
    write_package(layers(AttentionShape.GROUPED), folder / "ours.mlpackage")
    shard = layers(AttentionShape.GROUPED)
    function = shard.program.functions["main"]
    theirs = ct.convert(
        shard.program,
        inputs=list(function.input_types),
        outputs=function.output_types,
        minimum_deployment_target=ct.target.iOS18,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )
    theirs.save(str(folder / "theirs.mlpackage"))
    return read_model(folder / "ours.mlpackage")[0], read_model(folder / "theirs.mlpackage")[0]


@pytest.mark.slow
def test_the_metadata_is_that_of_ct_convert_but_for_the_date(both: tuple[Any, Any]) -> None:
    ours, theirs = (dict(model.description.metadata.userDefined) for model in both)
    today = datetime.now(UTC).date().isoformat()
    assert theirs.pop(f"{COREMLTOOLS}conversion_date")[:8] == today[:8], "the one that varies"
    assert ours.pop("anespec.version") == __version__
    assert ours == theirs
    assert ours[f"{COREMLTOOLS}version"] == ct.__version__


def test_the_description_and_build_info_are_those_of_ct_convert(both: tuple[Any, Any]) -> None:
    for model in both:
        model.description.ClearField("metadata")
    ours, theirs = both
    assert ours.description == theirs.description
    assert ours.specificationVersion == theirs.specificationVersion
    assert ours.mlProgram.attributes["buildInfo"] == theirs.mlProgram.attributes["buildInfo"]
    assert set(ours.mlProgram.attributes) == set(theirs.mlProgram.attributes)


@pytest.mark.fast_only("olmo2")
@pytest.mark.parametrize("family", slow_but(ENDINGS, "granite", "olmo2"))
def test_the_last_real_operation_is_the_output(family: str, families: Path, tmp_path: Path) -> None:
    gguf = families / f"{family}.gguf"
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", context=64, head_shards=2).path)
    for shard in artifact.manifest.shards:
        function = read_package(artifact.root / shard.path).functions["main"]
        last = function.operations[-1]
        assert last.outputs == function.outputs == tuple(spec.name for spec in shard.outputs)
        assert last.kind in ("add", "mul", "conv")
        assert not [op for op in function.operations if op.kind == "identity"]
        if isinstance(shard, HeadShard):
            assert {kind_of(tensor.projection) for tensor in shard.tensors} == {HEAD}
