"""The block graph: the exact operations, shapes and types that reach Core ML.

The lists of operations detect changes, on purpose. What Core ML makes of a graph was reported for such
operations in this order, and no test without a Mac shows what it makes of another. Whoever changes the graph
changes its list here, and sees what must be tried on a Mac again.
"""

from pathlib import Path
from typing import Any

import pytest
from graphs import FF, HEAD_DIM, HEADS, KV_HEADS, SLOTS, D, layers

from anespec.convert.graph.functions import ShardProgram
from anespec.convert.package import write_package
from anespec.manifests.schema import MAIN, AttentionShape, ShardFunction, WeightFormat
from anespec.runtime.backends.portable.mil_package import model_classes

NORM = (
    "abs reduce_max maximum mul real_div real_div abs reduce_mean mul add rsqrt mul mul "
    "mul reduce_mean mul add rsqrt mul mul mul"
)
HEAD = "conv reshape transpose"
ROTATE = "split mul mul sub mul mul add concat"
WRITE = "read_state mul matmul add coreml_update_state"
ATTEND = {
    AttentionShape.PER_KV_HEAD: "split split split " + "matmul add softmax matmul " * KV_HEADS + "concat",
    AttentionShape.GROUPED: "reshape matmul reshape add softmax reshape matmul reshape",
}


def layer_operations(shape: AttentionShape) -> str:
    return " ".join(
        [NORM, HEAD, ROTATE, HEAD, WRITE, WRITE, HEAD, ROTATE, "mul", ATTEND[shape],
         "transpose reshape conv add", NORM, "conv silu conv mul conv add"]
    )  # fmt: skip


def operations(shard: ShardProgram) -> list[Any]:
    return [op for op in shard.program.functions["main"].operations if op.op_type != "const"]


def kinds(shard: ShardProgram) -> list[str]:
    return [op.op_type for op in operations(shard)]


@pytest.mark.parametrize("shape", AttentionShape)
@pytest.mark.parametrize("count", [1, 2])
def test_the_exact_operations_of_a_shard(shape: AttentionShape, count: int) -> None:
    expected = ["reduce_sum sub", *[layer_operations(shape)] * count]
    assert kinds(layers(shape, range(count))) == " ".join(expected).split()


def test_one_kv_head_needs_no_slices() -> None:
    found = kinds(layers(AttentionShape.PER_KV_HEAD, kv_heads=1))
    assert found.count("split") == 2, "the two of rope"
    assert found.count("concat") == 2


def test_a_part_that_does_not_rotate_passes_through() -> None:
    rotating = [
        op for op in operations(layers(AttentionShape.GROUPED, rotary_dim=2)) if op.op_type == "split"
    ]
    assert [[out.shape[-1] for out in op.outputs] for op in rotating] == [[1, 1, 2]] * 2


def test_int8_weights_are_dequantised_by_the_graph() -> None:
    found = operations(layers(AttentionShape.GROUPED, weight_format=WeightFormat.INT8_CHANNEL))
    scaled = [op for op in found if op.op_type == "constexpr_blockwise_shift_scale"]
    assert len(scaled) == 7
    assert all(op.data.val.dtype == "int8" for op in scaled)
    assert all(op.scale.val.shape == (op.data.val.shape[0], 1, 1, 1) for op in scaled)
    assert {op.weight.op.name for op in found if op.op_type == "conv"} == {op.name for op in scaled}


@pytest.mark.parametrize("shape", AttentionShape)
def test_no_value_has_more_than_four_axes(shape: AttentionShape) -> None:
    """The Neural Engine takes up to five; the graph needs four."""
    assert max(len(out.shape) for op in operations(layers(shape)) for out in op.outputs) == 4


@pytest.mark.parametrize("shape", AttentionShape)
def test_every_projection_is_a_pointwise_convolution(shape: AttentionShape) -> None:
    convolutions = {op.name: op for op in operations(layers(shape)) if op.op_type == "conv"}
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    assert {name.removeprefix("layer_0_"): op.weight.shape for name, op in convolutions.items()} == {
        "q": (q, D, 1, 1),
        "k": (kv, D, 1, 1),
        "v": (kv, D, 1, 1),
        "output": (D, q, 1, 1),
        "gate": (FF, D, 1, 1),
        "up": (FF, D, 1, 1),
        "down": (D, FF, 1, 1),
    }


def description(shard: ShardProgram, folder: Path) -> Any:
    path = folder / "shard.mlpackage"
    write_package(shard, path)
    model = model_classes().Model()
    model.ParseFromString((path / "Data" / "com.apple.CoreML" / "model.mlmodel").read_bytes())
    return model.description


@pytest.mark.parametrize(("default_rows", "t_max"), [(1, 128), (1, 4), (8, 8)])
def test_t_is_a_range_with_a_default(tmp_path: Path, default_rows: int, t_max: int) -> None:
    found = description(layers(AttentionShape.GROUPED, default_rows=default_rows, t_max=t_max), tmp_path)
    rows = {"x": 2, "rope_cos": 0, "rope_sin": 0, "attn_mask": 2, "kv_write_mask": 3}
    assert {value.name for value in found.input} == set(rows)
    for value in found.input:
        array = value.type.multiArrayType
        assert array.WhichOneof("ShapeFlexibility") == "shapeRange", "never EnumeratedShapes"
        ranges = [(size.lowerBound, size.upperBound) for size in array.shapeRange.sizeRanges]
        assert ranges.pop(rows[value.name]) == (1, t_max)
        assert all(low == high for low, high in ranges)
        assert array.shape[rows[value.name]] == default_rows
        assert array.dataType == array.FLOAT16
    assert [value.name for value in found.output] == ["hidden"]


def test_states_are_fp16_and_one_pair_a_layer(tmp_path: Path) -> None:
    found = description(layers(AttentionShape.PER_KV_HEAD, range(3, 5)), tmp_path)
    arrays = {value.name: value.type.stateType.arrayType for value in found.state}
    assert set(arrays) == {"k_3", "v_3", "k_4", "v_4"}
    for array in arrays.values():
        assert tuple(array.shape) == (1, KV_HEADS, SLOTS, HEAD_DIM)
        assert array.dataType == array.FLOAT16


def test_a_static_function_has_a_fixed_t(tmp_path: Path) -> None:
    static = ShardFunction(name=MAIN, rows=1)
    found = description(layers(AttentionShape.PER_KV_HEAD, functions=(static,)), tmp_path)
    x = next(value for value in found.input if value.name == "x").type.multiArrayType
    assert tuple(x.shape) == (1, D, 1, 1)
    assert x.WhichOneof("ShapeFlexibility") is None
