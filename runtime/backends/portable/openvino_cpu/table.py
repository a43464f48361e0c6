"""Lower MIL operations to OpenVINO nodes.

Values are f32. Integer weights stay integers with their scales: the CPU plugin fuses
Constant -> Convert -> [Subtract ->] Multiply -> [Reshape ->] Convert -> MatMul into one product over
compressed weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.fused_norms import RMS_NORM
from anespec.runtime.backends.portable.mil_package import Operation, Packed
from anespec.runtime.backends.portable.openvino_cpu.library import (
    Node,
    Output,
    Rows,
    Type,
    Value,
    constant,
    elementwise,
    integers,
    opset15,
    out,
    planar,
    reduce,
    rows,
    whole_numbers,
)
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.spans import SlotAxis

QUANTISED = "constexpr_blockwise_shift_scale"

FP16_SMALLEST_NORMAL = 2.0**-14
FP16_SPLITTER = 2.0**13 + 1

Lowering = Callable[[Arguments[Value]], Value | tuple[Value, ...]]


def _binary(make: Callable[[Output, Output], Node]) -> Lowering:
    return lambda a: elementwise(make, a.value("x"), a.value("y"))


def _unary(make: Callable[[Output], Node]) -> Lowering:
    return lambda a: elementwise(make, a.value("x"))


def _reduce(make: Callable[..., Node]) -> Lowering:
    return lambda a: reduce(make, a.value("x"), a.integers("axes"), a.flag("keep_dims", False))


def _matmul(a: Arguments[Value]) -> Value:
    transpose_x, transpose_y = a.flag("transpose_x", False), a.flag("transpose_y", False)
    return out(opset15.matmul(planar(a.value("x")), planar(a.value("y")), transpose_x, transpose_y))


def _conv(a: Arguments[Value]) -> Value:
    """Lower a 1x1 convolution over a channel tensor to a product of rows [1, T, in] with weight rows."""
    a.require_pointwise_conv()
    weight = planar(a.value("weight"))
    if weight.get_partial_shape().rank.get_length() == 4:
        weight = out(opset15.squeeze(weight, integers([2, 3])))
    x = rows(a.value("x"))
    product = opset15.matmul(x.output, weight, False, True)
    return Rows(out(opset15.add(product, planar(a.value("bias"))) if a.has("bias") else product), x.layout)


def _dequantise(a: Arguments[Value]) -> Value:
    """Lower the weight of a 1x1 convolution to (out, in), with blocks along the second axis."""
    data, offset = a.stored("data"), a.array("offset") if a.has("offset") else None
    return integers_times_scales(partial(whole_numbers, data), data.shape[:2], a.array("scale"), offset)


def block_sizes(program: Program) -> Iterator[int]:
    """Yield how many numbers of a row have one scale, for every matrix whose products round rows to int8."""
    for operation in program.operations:
        if (matrix := rounding_matrix(operation, program)) is not None:
            yield matrix[1]


def rounding_matrix(operation: Operation, program: Program) -> tuple[NDArray[Any] | Packed, int] | None:
    """Return a matrix's integers, and how many of a row have one scale, if its products round rows to int8.

    None if `operation` makes no such matrix: without integers, or with an offset.
    """
    if operation.kind != QUANTISED or "offset" in operation.inputs:
        return None
    data, scale = (program.constants[operation.inputs[name][0]] for name in ("data", "scale"))
    if isinstance(data, str) or isinstance(scale, str):
        return None
    return data, data.shape[1] // scale.shape[1]


def integers_times_scales(
    stored: Callable[[Sequence[int]], Output],
    shape: Sequence[int],
    scale: NDArray[Any],
    offset: NDArray[Any] | None,
) -> Output:
    """Return matrices in f32 of `shape` (..., out, in), with the blocks of a scale along the last axis.

    `stored` returns the integers as a constant of a given shape.

    With an offset the factors are f32, since fp16 cannot hold all values. The plugin keeps the integers in
    either case, but only without an offset does it multiply them with activations rounded to int8.
    """
    per_row = scale.size // prod(shape[:-1])
    blocks = [*shape[:-1], per_row, shape[-1] // per_row] if per_row > 1 else [*shape]
    kind = Type.f16 if offset is None else Type.f32

    def per_block(values: NDArray[Any]) -> Node:
        shaped = values.reshape(*blocks[:-1], 1)
        return opset15.constant(shaped.astype(np.float16 if offset is None else np.float32))

    matrix: Node = opset15.convert(stored(blocks), kind)
    if offset is not None:
        matrix = opset15.subtract(matrix, per_block(offset))
    matrix = opset15.multiply(matrix, per_block(scale))
    if per_row > 1:
        matrix = opset15.reshape(matrix, integers(shape), False)
    return out(matrix if kind == Type.f32 else opset15.convert(matrix, Type.f32))


def _look_up(a: Arguments[Value]) -> Value:
    """Lower a 1x1 convolution's weight with a palette to f32 (out, in), since the plugin has no palettes."""
    return constant(a.looked_up())


def _rsqrt(a: Arguments[Value]) -> Value:
    epsilon = constant(a.number("epsilon", 1e-12), np.float32)
    one = constant(1.0, np.float32)
    return elementwise(lambda x: opset15.divide(one, opset15.sqrt(opset15.add(x, epsilon))), a.value("x"))


def _rms_norm(a: Arguments[Value]) -> Value:
    """Lower to the form that the plugin fuses into one kernel, with the weight that follows.

    The axis is always the last.
    """
    x, one = a.value("x"), constant(1.0, np.float32)
    mean = reduce(opset15.reduce_mean, elementwise(opset15.multiply, x, x), a.integers("axes"), True)
    epsilon = constant(a.array("epsilon"), np.float32)
    root = elementwise(lambda value: opset15.sqrt(opset15.add(value, epsilon)), mean)
    return elementwise(opset15.multiply, x, elementwise(lambda value: opset15.divide(one, value), root))


def _gelu(a: Arguments[Value]) -> Value:
    approximation = "tanh" if a.gelu_approximation() == "tanh" else "erf"
    return elementwise(lambda x: opset15.gelu(x, approximation), a.value("x"))


def _split(a: Arguments[Value]) -> tuple[Value, ...]:
    x, axis = planar(a.value("x")), constant(a.integer("axis"), np.int64)
    if a.has("split_sizes"):
        node = opset15.variadic_split(x, axis, integers(a.integers("split_sizes")))
    else:
        node = opset15.split(x, axis, a.integer("num_splits"))
    return tuple(node.outputs())


def slot_write(a: Arguments[Value], slots: Output, lanes: Output) -> Output:
    """Scatter rows, rounded to fp16: the row of lane `lanes[t]` into slot `slots[t]`.

    A lane that writes no slot repeats the write of another lane, so that all sizes but T are fixed.
    """
    new = opset15.gather(_round_to_fp16(planar(a.value("new"))), lanes, constant(2, np.int64))
    return out(opset15.scatter_update(planar(a.value("state")), slots, new, constant(2, np.int64)))


def slot_read(a: Arguments[Value], slots: Output, shown: Output) -> Output:
    """Gather the slots that rows show, and multiply those of rows that show none by zero."""
    found = opset15.gather(planar(a.value("slots")), slots, constant(2, np.int64))
    return out(opset15.multiply(found, shown))


def follow_slots(a: Arguments[Value], axis: SlotAxis) -> Value:
    """Lower a reshape so that it takes the number of slots from its input."""
    x, shape = planar(a.value("x")), a.integers("shape")
    if axis.before == axis.after:
        shape[axis.after] = 0
        return out(opset15.reshape(x, integers(shape), True))
    slots = opset15.gather(opset15.shape_of(x), integers([axis.before]), constant(0, np.int64))
    sizes = [integers(shape[: axis.after]), out(slots), integers(shape[axis.after + 1 :])]
    whole = opset15.concat([size for size in sizes if size.get_shape()[0]], 0)
    return out(opset15.reshape(x, whole, False))


def _round_to_fp16(x: Output) -> Output:
    """Round f32 to fp16's grid by arithmetic, since the plugin removes a pair of conversions.

    Veltkamp's splitting (T. J. Dekker, "A floating-point technique for extending the available precision",
    1971): with m = (2^13 + 1) x, m - (m - x) is x rounded to 11 bits. For x below fp16's smallest normal
    number, m is that of the smallest normal number, which gives the grid of subnormals. Values beyond fp16's
    range stay as they are.
    """
    size = opset15.maximum(opset15.abs(x), constant(FP16_SMALLEST_NORMAL, np.float32))
    signed = opset15.multiply(size, opset15.sign(x))
    shifter = opset15.multiply(signed, constant(FP16_SPLITTER, np.float32))
    return out(opset15.subtract(shifter, opset15.subtract(shifter, x)))


def _cast(a: Arguments[Value]) -> Value:
    a.require_cast_to_fp16()
    return elementwise(lambda x: opset15.convert(x, Type.f32), a.value("x"))


def _comparison(make: Callable[[Output, Output], Node]) -> Lowering:
    """Compare numbers rounded to fp16: two f32 values that round to the same one are equal."""

    def compared(x: Output, y: Output) -> Node:
        return make(_round_to_fp16(x), _round_to_fp16(y))

    return lambda a: elementwise(compared, a.value("x"), a.value("y"))


TABLE: Mapping[str, Lowering] = {
    "abs": _unary(opset15.abs),
    "add": _binary(opset15.add),
    "cast": _cast,
    "concat": lambda a: out(opset15.concat([planar(v) for v in a.values("values")], a.integer("axis"))),
    QUANTISED: _dequantise,
    "constexpr_lut_to_dense": _look_up,
    "conv": _conv,
    "equal": _comparison(opset15.equal),
    "exp": _unary(opset15.exp),
    "gelu": _gelu,
    "identity": lambda a: a.value("x"),
    "less_equal": _comparison(opset15.less_equal),
    "matmul": _matmul,
    "maximum": _binary(opset15.maximum),
    "mul": _binary(opset15.multiply),
    "real_div": _binary(opset15.divide),
    "reduce_max": _reduce(opset15.reduce_max),
    "reduce_mean": _reduce(opset15.reduce_mean),
    "reduce_min": _reduce(opset15.reduce_min),
    "reduce_sum": _reduce(opset15.reduce_sum),
    "reshape": lambda a: out(opset15.reshape(planar(a.value("x")), integers(a.integers("shape")), False)),
    RMS_NORM: _rms_norm,
    "rsqrt": _rsqrt,
    "sigmoid": _unary(opset15.sigmoid),
    "silu": _unary(opset15.swish),
    "softmax": lambda a: out(opset15.softmax(planar(a.value("x")), a.integer("axis"))),
    "split": _split,
    "sub": _binary(opset15.subtract),
    "tanh": _unary(opset15.tanh),
    "transpose": lambda a: out(opset15.transpose(planar(a.value("x")), integers(a.integers("perm")))),
}
