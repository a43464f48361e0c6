"""Values in OpenVINO's terms, and the layout that its CPU kernels like.

In the block graph's channel tensors the T rows are innermost. With T = 4, elementwise kernels would
work four numbers at a time and every projection would be wrapped in transposes, so such a value is
kept as rows [1, T, C] from one projection to the next and turned back only where an operation needs
the graph's own layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import (
    CHANNELS_AXIS,
    DECLARED,
    ChannelLayout,
    layout_of,
    to_rows,
)
from anespec.manifests.element_types import ElementType
from anespec.runtime.backends.portable.mapped_weights import is_shareable, shared_view
from anespec.runtime.backends.portable.openvino_library import Node, Output, Tensor, Type, op, opset15
from anespec.runtime.backends.portable.packed import Packed


@dataclass(frozen=True)
class Rows:
    """A channel tensor of the program, of this layout there, that is laid out as [1, T, C]."""

    output: Output
    layout: ChannelLayout


Value: TypeAlias = Output | Rows


def constant(values: Any, kind: type | None = None) -> Output:
    """A constant; fp16 becomes f32, the value type of the table."""
    array = np.asarray(values.unpacked() if isinstance(values, Packed) else values, dtype=kind)
    return opset15.constant(array.astype(np.float32) if array.dtype == np.float16 else array).output(0)


def whole_numbers(values: NDArray[Any] | Packed, shape: Sequence[int]) -> Output:
    """Return an integer constant in another shape; four-bit numbers stay packed.

    If possible it is not copied, so `values` must live as long as the object that uses the constant.
    """
    if not isinstance(values, Packed):
        return _in_place(values.reshape(shape), shape, Type(values.dtype))
    kind = {ElementType.INT4: Type.i4, ElementType.UINT4: Type.u4}.get(values.element)
    if kind is None:
        return opset15.constant(values.unpacked().reshape(shape)).output(0)
    # OpenVINO packs as Core ML does, the first number in the low bits.
    return _in_place(values.data, shape, kind)


def _in_place(stored: NDArray[Any], shape: Sequence[int], kind: Type) -> Output:
    """A constant of what is stored, copied only where it cannot be shared."""
    does_share = is_shareable(stored)
    tensor = Tensor(shared_view(stored) if does_share else np.ascontiguousarray(stored), list(shape), kind)
    return op.Constant(tensor, shared_memory=does_share).output(0)


def integers(values: Sequence[int]) -> Output:
    """An int64 constant of axes or sizes."""
    return constant(list(values), np.int64)


def out(node: Node) -> Output:
    """The only output of a node."""
    return node.output(0)


def planar(value: Value) -> Output:
    """The value in the graph's own layout."""
    if isinstance(value, Rows):
        channels = opset15.transpose(value.output, integers([0, 2, 1]))
        return out(opset15.unsqueeze(channels, integers([value.layout.single_axis])))
    return value


def rows(value: Value) -> Rows:
    """Return a channel tensor in rows; constants [1, C, 1, 1] are turned when the model is built."""
    if isinstance(value, Rows):
        return value
    layout = layout_of(shape_of(value)) or DECLARED
    node = value.get_node()
    if node.get_type_name() == "Constant":
        return Rows(constant(np.ascontiguousarray(to_rows(node.data)[None])), layout)
    channels = opset15.squeeze(value, integers([layout.single_axis]))
    return Rows(out(opset15.transpose(channels, integers([0, 2, 1]))), layout)


def shape_of(value: Output) -> tuple[int | None, ...]:
    """Return the shape of a value; a dimension that may vary is None."""
    sizes = value.get_partial_shape()
    return tuple(None if size.is_dynamic else size.get_length() for size in sizes)


def elementwise(make: Callable[..., Node], *operands: Value) -> Value:
    """Apply an elementwise operation: in rows if any operand is in rows, else unchanged."""
    layout = next((operand.layout for operand in operands if isinstance(operand, Rows)), None)
    if layout is None:
        return out(make(*operands))
    aligned = [operand if _is_scalar(operand) else rows(operand).output for operand in operands]
    return Rows(out(make(*aligned)), layout)


def reduce(make: Callable[..., Node], x: Value, axes: Sequence[int], keep_dims: bool) -> Value:
    """Apply a reduction; over the channels of rows it stays in rows."""
    if isinstance(x, Rows) and list(axes) == [CHANNELS_AXIS] and keep_dims:
        return Rows(out(make(x.output, integers([2]), True)), x.layout)
    return out(make(planar(x), integers(axes), keep_dims))


def _is_scalar(value: Value) -> bool:
    return isinstance(value, Output) and value.get_partial_shape().rank.get_length() == 0
