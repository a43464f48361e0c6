"""Faults to plant in the protobuf of a real shard, one for every rule."""

from collections.abc import Sequence
from typing import Any

import numpy as np

FP16, FP32, INT4, INT8, INT16, INT32, UINT8, UINT4, UINT6 = 10, 11, 25, 21, 22, 23, 31, 35, 38
"""MIL.proto's DataType."""

HIDDEN = "layer_0_out"
"""A value inside of every layer shard: [1, d, T, 1]."""


def main_block(model: Any, function: str = "main") -> Any:
    """The operations of a function."""
    found = model.mlProgram.functions[function]
    return found.block_specializations[found.opset]


def operation(model: Any, name: str) -> Any:
    """The operation that makes the value `name`."""
    return next(op for op in main_block(model).operations if any(v.name == name for v in op.outputs))


def feature(model: Any, name: str) -> Any:
    """An input's description."""
    return next(value for value in model.description.input if value.name == name).type.multiArrayType


def _set(tensor: Any, dtype: int, shape: Sequence[int | None]) -> None:
    tensor.Clear()
    tensor.dataType = dtype
    tensor.rank = len(shape)
    for size in shape:
        dimension = tensor.dimensions.add()
        if size is None:
            dimension.unknown.variadic = False
        else:
            dimension.constant.size = size


def add_op(
    model: Any,
    kind: str,
    shape: Sequence[int | None] = (1, 64, None, 64),
    dtype: int = FP16,
    name: str = "",
    **inputs: str,
) -> Any:
    """Append an operation with one output, under a name that is not taken yet."""
    op = main_block(model).operations.add()
    op.type = kind
    for key, value in ({"x": HIDDEN} | inputs).items():
        op.inputs[key].arguments.add().name = value
    output = op.outputs.add()
    output.name = name or unused(model)
    _set(output.type.tensorType, dtype, shape)
    return op


def unused(model: Any) -> str:
    """A name that no value has."""
    return f"planted_{len(main_block(model).operations)}"


def add_constant(model: Any, dtype: int, shape: Sequence[int], number: int | None = None) -> str:
    """Add a constant, in the weight file or with one integer as its value, and return its name."""
    op = main_block(model).operations.add()
    op.type = "const"
    output = op.outputs.add()
    output.name = name = unused(model)
    _set(output.type.tensorType, dtype, shape)
    value = op.attributes["val"]
    value.type.CopyFrom(output.type)
    if number is None:
        value.blobFileValue.fileName = "@model_path/weights/weight.bin"
        value.blobFileValue.offset = 1
    else:
        value.immediateValue.tensor.ints.values.append(number)
    return name


def rank_six(model: Any) -> None:
    add_op(model, "reshape", (1, 1, 1, 1, 64, 64))


def rank_five(model: Any) -> None:
    add_op(model, "reshape", (1, 1, 1, 64, 64))


def cast_to_fp32(model: Any) -> None:
    add_op(model, "cast", dtype=FP32)


def fp32_in_a_nested_block(model: Any) -> None:
    op = add_op(model, "cond")
    nested = op.blocks.add().operations.add()
    nested.type = "cast"
    nested.inputs["x"].arguments.add().name = HIDDEN
    _set(nested.outputs.add().type.tensorType, FP32, (1, 64, 1, 64))
    nested.outputs[0].name = "nested"


def cast_to_int16(model: Any) -> None:
    add_op(model, "cast", dtype=INT16)


def dimension_of(size: int) -> Any:
    def plant(model: Any) -> None:
        add_op(model, "tile", (1, size, 1, 64))

    return plant


def _state(model: Any, name: str) -> Any:
    found = next(value for value in model.mlProgram.functions["main"].inputs if value.name == name)
    return found.type.stateType.wrappedType.tensorType


def state_of_fp32(model: Any) -> None:
    _set(_state(model, "k_0"), FP32, (1, 4, 256, 64))


def state_of_unknown_length(model: Any) -> None:
    _set(_state(model, "k_0"), FP16, (1, 4, None, 64))


def state_of_width(width: int) -> Any:
    def plant(model: Any) -> None:
        _set(_state(model, "k_0"), FP16, (1, 4, 256, width))

    return plant


def one_input_fixed(model: Any) -> None:
    feature(model, "rope_cos").ClearField("shapeRange")


def all_inputs_fixed(model: Any) -> None:
    for value in model.description.input:
        value.type.multiArrayType.ClearField("shapeRange")


def one_input_enumerated(model: Any) -> None:
    array = feature(model, "rope_sin")
    shape = list(array.shape)
    array.enumeratedShapes.shapes.add().shape.extend(shape)


def default_of_four_rows(model: Any) -> None:
    feature(model, "x").shape[2] = 4


def scatter(model: Any) -> None:
    add_op(model, "scatter_nd")


def softplus(model: Any) -> None:
    add_op(model, "softplus")


def exponential(model: Any) -> None:
    add_op(model, "exp")


def state_never_written(model: Any) -> None:
    """One state loses its write, and is only read."""
    operations = main_block(model).operations
    del operations[next(at for at, op in enumerate(operations) if op.type == "write_state")]


def shift_and_concat(model: Any) -> None:
    read = next(op for op in main_block(model).operations if op.type == "read_state")
    add_op(model, "slice_by_index", name="tail", x=read.outputs[0].name)
    concat = add_op(model, "concat", name="shifted", values="tail")
    del concat.inputs["x"]
    concat.inputs["values"].arguments.add().name = HIDDEN
    write = next(op for op in main_block(model).operations if op.type == "write_state")
    write.inputs["data"].arguments[0].name = "shifted"


def concat_without_a_state(model: Any) -> None:
    add_op(model, "slice_by_index", name="tail")
    concat = add_op(model, "concat", name="joined", values="tail")
    del concat.inputs["x"]
    write = next(op for op in main_block(model).operations if op.type == "write_state")
    write.inputs["data"].arguments[0].name = "joined"


def topk_and_cast(model: Any) -> None:
    add_op(model, "topk", dtype=INT16, name="best")
    add_op(model, "cast", name="after", x="best")


def cast_alone(model: Any) -> None:
    add_op(model, "cast")


def gather_from(rows: int) -> Any:
    def plant(model: Any) -> None:
        add_op(model, "gather", x=add_constant(model, FP16, (rows, 64)))

    return plant


def gather_along_last_axis(model: Any) -> None:
    table, axis = add_constant(model, FP16, (64, 40000)), add_constant(model, INT32, (), -1)
    add_op(model, "gather", x=table, axis=axis)


def linear_to(width: int) -> Any:
    def plant(model: Any) -> None:
        add_op(model, "linear", (1, 64, width))

    return plant


def matmul_with_constant(model: Any) -> None:
    add_op(model, "matmul", y=add_constant(model, FP16, (64, 64)))


def conv_in_groups(groups: int) -> Any:
    def plant(model: Any) -> None:
        add_op(model, "conv", (1, 1024, None, 1), groups=add_constant(model, INT32, (), groups))

    return plant


def _weight(model: Any, data_type: int, scale: Sequence[int]) -> None:
    op = operation(model, "layer_0_q_weight")
    data = op.inputs["data"].arguments[0].value.type.tensorType
    _set(data, data_type, (1024, 1024, 1, 1))
    _set(op.inputs["scale"].arguments[0].value.type.tensorType, FP16, scale)


def weights(data_type: int, *scale: int) -> Any:
    def plant(model: Any) -> None:
        _weight(model, data_type, scale)

    return plant


def old_weights_per_block(model: Any) -> None:
    """The form of before iOS 18, whose parts are attributes."""
    op = operation(model, "layer_0_q_weight")
    op.type = "constexpr_affine_dequantize"
    for key, old, data_type, shape in (
        ("quantized_data", "data", INT8, (1024, 1024, 1, 1)),
        ("scale", "scale", FP16, (1024, 32, 1, 1)),
    ):
        value = op.attributes[key]
        value.CopyFrom(op.inputs[old].arguments[0].value)
        _set(value.type.tensorType, data_type, shape)
        del op.inputs[old]


def float_offset(model: Any) -> None:
    op = operation(model, "layer_0_q_weight")
    op.inputs["offset"].CopyFrom(op.inputs["scale"])
    _set(op.inputs["offset"].arguments[0].value.type.tensorType, FP32, (1024, 1, 1, 1))


def integer_offset(model: Any) -> None:
    float_offset(model)
    offset = operation(model, "layer_0_q_weight").inputs["offset"]
    _set(offset.arguments[0].value.type.tensorType, INT8, (1024, 1, 1, 1))


def scales_of(*scales: float) -> Any:
    """The first scales of a weight; the others are 1."""

    def plant(model: Any) -> None:
        values = np.ones(1024, "<f2")
        values[: len(scales)] = scales
        value = operation(model, "layer_0_q_weight").inputs["scale"].arguments[0].value
        value.immediateValue.tensor.bytes.values = values.tobytes()

    return plant


def palettes(*groups: int, indices: int = UINT8) -> Any:
    entries = {UINT8: 256, UINT6: 64, UINT4: 16}[indices]

    def plant(model: Any) -> None:
        op = operation(model, "layer_0_q_weight")
        op.type = "constexpr_lut_to_dense"
        for key, old, data_type, shape in (
            ("indices", "data", indices, (1024, 1024, 1, 1)),
            ("lut", "scale", FP16, (*groups, entries, 1)),
        ):
            op.inputs[key].CopyFrom(op.inputs[old])
            _set(op.inputs[key].arguments[0].value.type.tensorType, data_type, shape)
            del op.inputs[old]

    return plant


def second_function(model: Any) -> None:
    model.mlProgram.functions["second"].CopyFrom(model.mlProgram.functions["main"])


def wide_axes(model: Any) -> None:
    """Every input and output with at least 32 elements in its last axis."""
    for value in model.mlProgram.functions["main"].inputs:
        if value.type.WhichOneof("type") == "tensorType":
            _set(value.type.tensorType, FP16, (1, 1, 1, 64))
    _set(operation(model, "hidden").outputs[0].type.tensorType, FP16, (1, 1, 1, 32))
