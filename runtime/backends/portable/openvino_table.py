"""MIL operations as OpenVINO nodes: the fast portable library.

Values are f32; weights stay int8 with their scale, which the CPU plugin fuses into its matrix
products when they look like Constant -> Convert -> Multiply -> Convert -> MatMul.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from openvino import Node, Output, Type, opset15

from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE

Value = Output
Lowering = Callable[[Arguments[Value]], Value | tuple[Value, ...]]


def constant(values: Any, kind: type | None = None) -> Value:
    """A constant node; fp16 values become f32, the table's value type, unless `kind` says otherwise."""
    array = np.asarray(values, dtype=kind)
    return opset15.constant(array.astype(np.float32) if array.dtype == np.float16 else array).output(0)


def _integers(values: list[int]) -> Value:
    return constant(values, np.int64)


def _out(node: Node) -> Value:
    return node.output(0)


def _binary(make: Callable[[Value, Value], Node]) -> Lowering:
    return lambda a: _out(make(a.value("x"), a.value("y")))


def _unary(make: Callable[[Value], Node]) -> Lowering:
    return lambda a: _out(make(a.value("x")))


def _reduce(make: Callable[..., Node]) -> Lowering:
    return lambda a: _out(make(a.value("x"), _integers(a.integers("axes")), a.flag("keep_dims", False)))


def _matmul(a: Arguments[Value]) -> Value:
    transpose_x, transpose_y = a.flag("transpose_x", False), a.flag("transpose_y", False)
    return _out(opset15.matmul(a.value("x"), a.value("y"), transpose_x, transpose_y))


def _conv(a: Arguments[Value]) -> Value:
    """A 1x1 convolution over [1, in, T, 1] is a product of [1, T, in] rows with the weight's rows."""
    a.require_pointwise_conv()
    weight = a.value("weight")
    rows = opset15.transpose(opset15.squeeze(a.value("x"), _integers([3])), _integers([0, 2, 1]))
    out = opset15.matmul(rows, weight, False, True)
    if a.has("bias"):
        out = opset15.add(out, a.value("bias"))
    return _out(opset15.unsqueeze(opset15.transpose(out, _integers([0, 2, 1])), _integers([3])))


def _dequantise(a: Arguments[Value]) -> Value:
    data, scale = a.array("data"), a.array("scale")
    matrix = opset15.constant(np.ascontiguousarray(data[:, :, 0, 0]))
    scales = opset15.constant(np.ascontiguousarray(scale[:, :, 0, 0]))
    scaled = opset15.multiply(opset15.convert(matrix, Type.f16), scales)
    return _out(opset15.convert(scaled, Type.f32))


def _concat(a: Arguments[Value]) -> Value:
    return _out(opset15.concat(a.values("values"), a.integer("axis")))


def _rsqrt(a: Arguments[Value]) -> Value:
    epsilon = a.number("epsilon", 1e-12)
    x = a.value("x")
    shifted = _out(opset15.add(x, constant(epsilon, np.float32))) if epsilon else x
    return _out(opset15.divide(constant(1.0, np.float32), opset15.sqrt(shifted)))


def _split(a: Arguments[Value]) -> tuple[Value, ...]:
    axis = constant(a.integer("axis"), np.int64)
    if a.has("split_sizes"):
        node = opset15.variadic_split(a.value("x"), axis, _integers(a.integers("split_sizes")))
    else:
        node = opset15.split(a.value("x"), axis, a.integer("num_splits"))
    return tuple(node.outputs())


def _slot_write(a: Arguments[Value]) -> Value:
    """Scatter the rows that write; a row that does not repeats the first one that does."""
    mask, new = a.value("mask"), _round_to_fp16(a.value("new"))
    slots = opset15.topk(mask, constant(1, np.int64), 2, "max", "none", index_element_type="i64").output(1)
    slots = opset15.reshape(slots, _integers([-1]), False)
    writes = opset15.reduce_sum(mask, _integers([0, 1, 2]), False)
    first = opset15.topk(writes, constant(1, np.int64), 0, "max", "none", index_element_type="i64").output(1)
    count = opset15.gather(opset15.shape_of(mask), _integers([3]), constant(0, np.int64))
    lanes = opset15.range(
        constant(0, np.int64), opset15.squeeze(count), constant(1, np.int64), output_type="i64"
    )
    writers = opset15.select(opset15.greater(writes, constant(0.0, np.float32)), lanes, first)
    slots = opset15.gather(slots, writers, constant(0, np.int64))
    rows = opset15.gather(new, writers, constant(2, np.int64))
    return _out(opset15.scatter_update(a.value("state"), slots, rows, constant(2, np.int64)))


def _round_to_fp16(x: Value) -> Value:
    return _out(opset15.convert(opset15.convert(x, Type.f16), Type.f32))


TABLE: Mapping[str, Lowering] = {
    "abs": _unary(opset15.abs),
    "add": _binary(opset15.add),
    "concat": _concat,
    "constexpr_blockwise_shift_scale": _dequantise,
    "conv": _conv,
    "identity": lambda a: a.value("x"),
    "matmul": _matmul,
    "maximum": _binary(opset15.maximum),
    "mul": _binary(opset15.multiply),
    "real_div": _binary(opset15.divide),
    "reduce_max": _reduce(opset15.reduce_max),
    "reduce_mean": _reduce(opset15.reduce_mean),
    "reduce_sum": _reduce(opset15.reduce_sum),
    "reshape": lambda a: _out(opset15.reshape(a.value("x"), _integers(a.integers("shape")), False)),
    "rsqrt": _rsqrt,
    "silu": _unary(opset15.swish),
    SLOT_WRITE: _slot_write,
    "softmax": lambda a: _out(opset15.softmax(a.value("x"), a.integer("axis"))),
    "split": _split,
    "sub": _binary(opset15.subtract),
    "transpose": lambda a: _out(opset15.transpose(a.value("x"), _integers(a.integers("perm")))),
}
