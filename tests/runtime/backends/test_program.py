"""The loader of shards: what is damaged, missing or unknown is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graphs import layers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anespec.convert.package import write_package
from anespec.manifests.errors import ArtifactError
from anespec.manifests.schema import AttentionShape, WeightFormat
from anespec.runtime.backends.portable.openvino_runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program, load_program
from anespec.runtime.backends.portable.proto import model_classes
from anespec.runtime.backends.portable.torch_runner import TorchRunner

MODEL = Path("Data", "com.apple.CoreML", "model.mlmodel")
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")
Runner = Callable[[Program, int], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "layers.mlpackage"
    write_package(layers(AttentionShape.GROUPED, weight_format=WeightFormat.INT8_CHANNEL), path)
    return path


@pytest.fixture
def package(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "layers.mlpackage"))


def edit(package: Path, change: Callable[[Any], None]) -> None:
    """Change the main block of the stored program."""
    model = model_classes().Model()
    model.ParseFromString((package / MODEL).read_bytes())
    function = model.mlProgram.functions["main"]
    change(function.block_specializations[function.opset])
    (package / MODEL).write_bytes(model.SerializeToString())


def operation(block: Any, kind: str) -> Any:
    return next(op for op in block.operations if op.type == kind)


@pytest.mark.parametrize("path", ["../../outside", "/dev/zero"])
def test_a_model_file_outside_its_package_is_not_read(package: Path, path: str) -> None:
    file = package / "Manifest.json"
    manifest = json.loads(file.read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = path
    file.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="lies outside"):
        load_program(package)


def test_inputs_states_and_constants(whole: Path) -> None:
    program = load_program(whole)
    assert program.inputs == {
        "x": (1, 16, None, 1),
        "rope_cos": (None, 2),
        "rope_sin": (None, 2),
        "attn_mask": (1, 1, None, 64),
        "kv_write_mask": (1, 1, 64, None),
    }
    assert program.states == {"k_0": (1, 2, 64, 4), "v_0": (1, 2, 64, 4)}
    assert program.outputs == ("hidden",)
    assert not {op.kind for op in program.operations} & {"const"}
    assert all(
        name in program.constants or name in program.inputs or name in program.states or name in made
        for made in [{out for op in program.operations for out in op.outputs}]
        for op in program.operations
        for names in op.inputs.values()
        for name in names
    )


@pytest.mark.parametrize("missing", ["Manifest.json", str(MODEL)])
def test_a_missing_file_is_named(package: Path, missing: str) -> None:
    (package / missing).unlink()
    with pytest.raises(ArtifactError, match=r"layers\.mlpackage: is not a readable \.mlpackage .*convert"):
        load_program(package)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rootModelIdentifier": "a", "itemInfoEntries": {}}'])
def test_a_damaged_package_manifest_is_named(package: Path, text: str) -> None:
    (package / "Manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"layers\.mlpackage: is not a readable"):
        load_program(package)


def test_a_truncated_model_is_named(package: Path) -> None:
    data = (package / MODEL).read_bytes()
    (package / MODEL).write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError, match=r"layers\.mlpackage: its model file is damaged"):
        load_program(package)


def test_another_kind_of_model_is_refused(package: Path) -> None:
    (package / MODEL).write_bytes(b"")
    with pytest.raises(ArtifactError, match="is not an ML program"):
        load_program(package)


def test_missing_weights_are_named(package: Path) -> None:
    (package / WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match=r"weight\.bin: the weights cannot be read"):
        load_program(package)


@pytest.mark.parametrize("size", [1, 64, 500])
def test_truncated_weights_are_named(package: Path, size: int) -> None:
    (package / WEIGHTS).write_bytes((package / WEIGHTS).read_bytes()[:size])
    with pytest.raises(ArtifactError, match=r"layers\.mlpackage: the weights file is damaged at byte \d+"):
        load_program(package)


def test_a_weight_of_another_size_is_refused(package: Path) -> None:
    def grow(block: Any) -> None:
        for raw in block.operations:
            for values in raw.inputs.values():
                for argument in values.arguments:
                    if argument.value.WhichOneof("value") == "blobFileValue":
                        argument.value.type.tensorType.dimensions[0].constant.size += 1
            for value in raw.attributes.values():
                if value.WhichOneof("value") == "blobFileValue":
                    value.type.tensorType.dimensions[0].constant.size += 1

    edit(package, grow)
    with pytest.raises(ArtifactError, match="the weights file is damaged"):
        load_program(package)


@pytest.mark.parametrize(("runner", "library"), [(TorchRunner, "torch"), (OpenVINORunner, "OpenVINO")])
def test_an_unknown_operation_is_named_with_its_shard(package: Path, runner: Runner, library: str) -> None:
    def rename(block: Any) -> None:
        operation(block, "silu").type = "erf"

    edit(package, rename)
    with pytest.raises(
        ArtifactError, match=rf"layers\.mlpackage: the operation erf \(\S+\) has no {library} equivalent"
    ):
        runner(load_program(package), 1)


@pytest.mark.parametrize("runner", [TorchRunner, OpenVINORunner])
def test_a_missing_input_is_named(package: Path, runner: Runner) -> None:
    def drop(block: Any) -> None:
        del operation(block, "constexpr_blockwise_shift_scale").inputs["scale"]

    edit(package, drop)
    with pytest.raises(ArtifactError, match=r"layers\.mlpackage: constexpr\S+ \S+ lacks its input 'scale'"):
        runner(load_program(package), 1)


def test_nested_blocks_are_refused(package: Path) -> None:
    def nest(block: Any) -> None:
        operation(block, "silu").blocks.add()

    edit(package, nest)
    with pytest.raises(ArtifactError, match="a silu with nested blocks"):
        load_program(package)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_noise_in_the_model_file_never_escapes(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    package = tmp_path / "noisy.mlpackage"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(whole, package)
    content = bytearray((package / MODEL).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (package / MODEL).write_bytes(content)
    try:
        TorchRunner(load_program(package), 1)
    except ArtifactError as error:
        assert "noisy.mlpackage" in str(error)
