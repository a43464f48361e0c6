"""The loader of shards: what is damaged, missing or unknown is named."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from examples import examples
from graphs import layers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_here import mlx_runner

from anespec.convert.package import write_package
from anespec.manifests.schema import AttentionShape, WeightFormat
from anespec.runtime.backends.portable import shape_table
from anespec.runtime.backends.portable.mil_package import model_classes
from anespec.runtime.backends.portable.openvino_cpu import model as openvino_model
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program, load_program
from anespec.runtime.backends.portable.torch_cpu import runner as torch_runner
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.system.errors import ArtifactError

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


@pytest.mark.parametrize("place", ["/dev/zero", "../../outside", "com.apple.CoreML"])
def test_a_model_file_outside_the_package_is_not_read(package: Path, place: str) -> None:
    (package.parent / "outside").write_bytes(b"")
    entries = {"a": {"path": place}}
    (package / "Manifest.json").write_text(
        json.dumps({"rootModelIdentifier": "a", "itemInfoEntries": entries})
    )
    with pytest.raises(
        ArtifactError, match=r"layers\.mlpackage: is not a readable .* is not a file inside it"
    ):
        load_program(package)


def test_a_package_manifest_that_is_no_file_is_not_read(package: Path) -> None:
    (package / "Manifest.json").unlink()
    os.mkfifo(package / "Manifest.json")
    with pytest.raises(ArtifactError, match=r"is not a file inside it"):
        load_program(package)


def test_a_model_file_larger_than_any_is_not_read(package: Path) -> None:
    os.truncate(package / MODEL, 1 << 40)
    with pytest.raises(ArtifactError, match="is larger than a protobuf can be"):
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


def test_weights_that_are_no_file_are_not_waited_for(package: Path) -> None:
    (package / WEIGHTS).unlink()
    os.mkfifo(package / WEIGHTS)
    with pytest.raises(ArtifactError, match=r"weight\.bin are not a file"):
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


@pytest.mark.parametrize(
    ("runner", "library"), [(TorchRunner, "torch"), (OpenVINORunner, "OpenVINO"), (mlx_runner, "MLX")]
)
def test_an_unknown_operation_is_named_with_its_shard(package: Path, runner: Runner, library: str) -> None:
    def rename(block: Any) -> None:
        operation(block, "silu").type = "erf"

    edit(package, rename)
    with pytest.raises(
        ArtifactError, match=rf"layers\.mlpackage: the operation erf \(\S+\) has no {library} equivalent"
    ):
        runner(load_program(package), 1)


@pytest.mark.parametrize("runner", [TorchRunner, OpenVINORunner, mlx_runner])
def test_a_damaged_name_is_printed_on_one_line(package: Path, runner: Runner) -> None:
    def damage(block: Any) -> None:
        operation(block, "silu").type = "const\n\x1b[2J"

    edit(package, damage)
    with pytest.raises(ArtifactError, match=r"the operation const\\n\\x1b\[2J \("):
        runner(load_program(package), 1)


@pytest.mark.parametrize("runner", [TorchRunner, OpenVINORunner, mlx_runner])
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


def dimensions(value: Any) -> Any:
    return value.type.tensorType.dimensions


def constant_of(block: Any, kind: str, key: str) -> Any:
    """The stored value of an operation's parameter."""
    name = operation(block, kind).inputs[key].arguments[0].name
    return next(op for op in block.operations if op.outputs[0].name == name).attributes["val"]


def name_a_result_twice(block: Any) -> None:
    operation(block, "silu").outputs[0].name = operation(block, "softmax").outputs[0].name


def name_a_constant_twice(block: Any) -> None:
    first, second = [op for op in block.operations if op.type == "const"][:2]
    second.outputs[0].name = first.outputs[0].name


def have_no_outputs(block: Any) -> None:
    del block.outputs[:]


def have_an_output_twice(block: Any) -> None:
    block.outputs.append(block.outputs[0])


def have_an_output_that_nothing_makes(block: Any) -> None:
    block.outputs[:] = ["nowhere"]


def have_an_input_for_an_output(block: Any) -> None:
    block.outputs[:] = ["x"]


def take_what_nothing_makes(block: Any) -> None:
    operation(block, "silu").inputs["x"].arguments[0].name = "nowhere"


def take_what_comes_later(block: Any) -> None:
    operation(block, "silu").inputs["x"].arguments[0].name = block.outputs[0]


def take_no_value(block: Any) -> None:
    del operation(block, "silu").inputs["x"].arguments[:]


def take_two_values(block: Any) -> None:
    operation(block, "silu").inputs["x"].arguments.add().name = "x"


def read_a_state_that_is_none(block: Any) -> None:
    operation(block, "read_state").inputs["input"].arguments[0].name = "x"


def reduce_a_huge_axis(block: Any) -> None:
    constant_of(block, "reduce_max", "axes").immediateValue.tensor.ints.values[0] = 2**31 - 1


def reduce_an_axis_twice(block: Any) -> None:
    axes = constant_of(block, "reduce_max", "axes")
    axes.immediateValue.tensor.ints.values.append(axes.immediateValue.tensor.ints.values[0])
    dimensions(axes)[0].constant.size = 2


def reshape_to_a_huge_shape(block: Any) -> None:
    constant_of(block, "reshape", "shape").immediateValue.tensor.ints.values[1] = 2**31 - 1


def reshape_to_what_does_not_fit(block: Any) -> None:
    constant_of(block, "reshape", "shape").immediateValue.tensor.ints.values[1] += 1


def split_into_other_parts(block: Any) -> None:
    del operation(block, "split").outputs[0]


def interleave(block: Any) -> None:
    constant_of(block, "concat", "interleave").immediateValue.tensor.bools.values[0] = True


def multiply_what_does_not_fit(block: Any) -> None:
    flag = constant_of(block, "matmul", "transpose_y").immediateValue.tensor.bools
    flag.values[0] = not flag.values[0]


def project_another_width(block: Any) -> None:
    operation(block, "conv").inputs["x"].arguments[0].name = "attn_mask"


def scale_in_blocks_that_do_not_fit(block: Any) -> None:
    operation(block, "constexpr_blockwise_shift_scale").inputs["scale"].CopyFrom(
        operation(block, "constexpr_blockwise_shift_scale").inputs["data"]
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (name_a_result_twice, "is defined 2 times"),
        (name_a_constant_twice, "is defined twice"),
        (have_no_outputs, r"has the outputs \[\]"),
        (have_an_output_twice, r"has the outputs \['hidden', 'hidden'\]"),
        (have_an_output_that_nothing_makes, "no operation computes its output 'nowhere'"),
        (have_an_input_for_an_output, "no operation computes its output 'x'"),
        (take_what_nothing_makes, "silu .* takes 'nowhere', which has no value at that point"),
        (take_what_comes_later, "silu .* takes 'hidden', which has no value at that point"),
        (take_no_value, "silu .* lacks its input 'x'"),
        (take_two_values, "silu .* has several values for its input 'x'"),
        (read_a_state_that_is_none, "uses a state 'x' that the shard does not have"),
        (reduce_a_huge_axis, "reduce_max .* has the axes"),
        (reduce_an_axis_twice, "reduce_max .* has the axes"),
        (reshape_to_a_huge_shape, "reshape .* makes"),
        (reshape_to_what_does_not_fit, "reshape .* makes"),
        (split_into_other_parts, "split .* splits axis"),
        (interleave, "concat .* joins"),
        (multiply_what_does_not_fit, "matmul .* multiplies"),
        (project_another_width, "conv .* projects"),
        (scale_in_blocks_that_do_not_fit, "constexpr_blockwise_shift_scale .* scales"),
    ],
)
@pytest.mark.parametrize("runner", [TorchRunner, OpenVINORunner, mlx_runner])
def test_a_program_that_means_nothing_is_refused(
    package: Path, runner: Runner, change: Callable[[Any], None], reason: str
) -> None:
    edit(package, change)
    with pytest.raises(ArtifactError, match=rf"layers\.mlpackage: .*{reason}.*; convert"):
        runner(load_program(package), 1)


def test_a_value_of_needless_size_is_refused(package: Path) -> None:
    """Two rows of numbers that a file holds make a square of them that no memory does."""

    def square(block: Any) -> None:
        silu, shapes = operation(block, "silu"), ([1, 1, 1, -1], [1, 1, -1, 1])
        source = silu.inputs["x"].arguments[0].name
        for _ in range(3):
            position = list(block.operations).index(operation(block, "silu"))
            for shape in shapes:
                made = type(silu)(type="reshape")
                made.inputs["x"].arguments.add().name = source
                value = made.inputs["shape"].arguments.add().value
                value.type.tensorType.dataType = 23
                dimensions(value).add().constant.size = 4
                value.immediateValue.tensor.ints.values.extend(shape)
                made.outputs.add().name = f"{source}_{shape.index(-1)}"
                block.operations.insert(position, made)
                position += 1
            product = type(silu)(type="mul")
            product.inputs["x"].arguments.add().name = f"{source}_3"
            product.inputs["y"].arguments.add().name = f"{source}_2"
            product.outputs.add().name = f"{source}_squared"
            block.operations.insert(position, product)
            source = f"{source}_squared"

    edit(package, square)
    with pytest.raises(
        ArtifactError, match=r"layers\.mlpackage: mul \S+ makes a value of the excessive shape"
    ):
        load_program(package)


def test_inputs_of_one_name_are_refused(package: Path) -> None:
    model = model_classes().Model()
    model.ParseFromString((package / MODEL).read_bytes())
    inputs = model.mlProgram.functions["main"].inputs
    inputs[1].name = inputs[0].name
    (package / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match="two inputs have the same name"):
        load_program(package)


@pytest.mark.parametrize("size", [0, 2**62])
@pytest.mark.parametrize("which", ["x", "k_0"])
def test_inputs_and_states_of_impossible_sizes_are_refused(package: Path, which: str, size: int) -> None:
    model = model_classes().Model()
    model.ParseFromString((package / MODEL).read_bytes())
    value = next(v for v in model.mlProgram.functions["main"].inputs if v.name == which)
    is_state = value.type.WhichOneof("type") == "stateType"
    tensor = value.type.stateType.wrappedType.tensorType if is_state else value.type.tensorType
    tensor.dimensions[1].constant.size = size
    (package / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=f"{which}' has the impossible shape"):
        load_program(package)


@pytest.mark.parametrize("runner", [TorchRunner, OpenVINORunner, mlx_runner])
def test_states_larger_than_the_memory_are_refused(whole: Path, runner: Runner) -> None:
    program = replace(load_program(whole), states={"k_0": (1, 2**20, 2**14, 2**5)})
    with pytest.raises(ArtifactError, match=r"its K/V states take \d+\.\d\d GB and this machine has"):
        runner(program, 1)


def test_every_library_and_the_shape_checks_know_the_same_operations() -> None:
    """An operation without a shape would leave the programs that have it unchecked, and without spans."""
    both = set(torch_runner.TABLE) & set(openvino_model.TABLE)
    assert set(torch_runner.TABLE) - both == {"slice_by_index", "slice_update"}  # OpenVINO's are of states
    assert set(openvino_model.TABLE) - both == {"rms_norm"}  # a name for several operations
    assert both - set(shape_table.TABLE) == {"split"}  # has several results


@pytest.mark.parametrize(
    ("make", "broken"),
    [(TorchRunner, torch_runner), (OpenVINORunner, openvino_model)],
)
def test_what_a_library_still_raises_is_one_sentence(
    whole: Path, make: Runner, broken: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(_: object) -> None:
        raise RuntimeError("Check failed at a.cpp:1:\nthe reason.\n")

    monkeypatch.setattr(broken, "TABLE", dict.fromkeys(broken.TABLE, raising))
    program = load_program(whole)
    with pytest.raises(ArtifactError, match=r"layers\.mlpackage: \w+ cannot run it \(the reason\); convert"):
        make(program, 1)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
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
