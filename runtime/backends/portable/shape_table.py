"""Compute the shapes of MIL operations' results, and check that the operations are valid.

This is a table like those of the libraries, with shapes as values. A library can execute every operation of a
program that passes. Shapes have no unknown dimensions: if T may vary, a program is checked for several T.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import layout_of
from anespec.runtime.backends.portable.arguments import Arguments, slices_of
from anespec.runtime.backends.portable.mil_package import Packed, unpacked

Shape: TypeAlias = tuple[int, ...]
Rule = Callable[[Arguments[Shape]], Shape]


def _broadcast(a: Arguments[Shape], *shapes: Shape) -> Shape:
    try:
        return tuple(int(size) for size in np.broadcast_shapes(*shapes))
    except ValueError:
        raise a.refused(f"takes shapes that do not fit, {' and '.join(map(str, shapes))}") from None


def _binary(a: Arguments[Shape]) -> Shape:
    return _broadcast(a, a.value("x"), a.value("y"))


def _unary(a: Arguments[Shape]) -> Shape:
    return a.value("x")


def _axes(a: Arguments[Shape], axes: list[int], rank: int) -> list[int]:
    """Return axes as indices from the front; refuse one that occurs twice."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    if not all(0 <= axis < rank for axis in found) or len(set(found)) < len(found):
        raise a.refused(f"has the axes {axes} of a value with {rank}")
    return found


def _axis(a: Arguments[Shape], shape: Shape) -> int:
    return _axes(a, [a.integer("axis")], len(shape))[0]


def _reduce(a: Arguments[Shape]) -> Shape:
    shape = a.value("x")
    axes = _axes(a, a.integers("axes"), len(shape))
    if a.flag("keep_dims", False):
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _softmax(a: Arguments[Shape]) -> Shape:
    shape = a.value("x")
    _axis(a, shape)
    return shape


def _cast(a: Arguments[Shape]) -> Shape:
    a.require_cast_to_fp16()
    return a.value("x")


def _rsqrt(a: Arguments[Shape]) -> Shape:
    a.number("epsilon", 0.0)
    return a.value("x")


def _gelu(a: Arguments[Shape]) -> Shape:
    a.gelu_approximation()
    return a.value("x")


def _matmul(a: Arguments[Shape]) -> Shape:
    x, y = a.value("x"), a.value("y")
    if min(len(x), len(y)) < 2:
        raise a.refused(f"multiplies {x} with {y}")
    rows, inner = reversed(x[-2:]) if a.flag("transpose_x", False) else x[-2:]
    depth, columns = reversed(y[-2:]) if a.flag("transpose_y", False) else y[-2:]
    if inner != depth:
        raise a.refused(f"multiplies {x} with {y}")
    return (*_broadcast(a, x[:-2], y[:-2]), rows, columns)


def _conv(a: Arguments[Shape]) -> Shape:
    a.require_pointwise_conv()
    x, weight = a.value("x"), a.value("weight")
    if layout_of(x) is None or len(weight) != 4 or weight[1:] != (x[1], 1, 1):
        raise a.refused(f"projects {x} with a weight {weight}")
    if a.has("bias") and a.value("bias") != weight[:1]:
        raise a.refused(f"adds a bias {a.value('bias')} to {weight[0]} channels")
    return (1, weight[0], *x[2:])


def _dequantise(a: Arguments[Shape]) -> Shape:
    data, scale = a.stored("data"), a.array("scale")
    offset = a.array("offset") if a.has("offset") else scale
    integral = isinstance(data, Packed) or data.dtype.kind in "iu"
    fits = (
        len(data.shape) == 4
        and data.shape[2:] == (1, 1)
        and scale.shape == offset.shape == (data.shape[0], *scale.shape[1:2], 1, 1)
        and scale.shape[1] > 0
        and data.shape[1] % scale.shape[1] == 0
    )
    if not integral or not fits or scale.dtype.kind != "f":
        raise a.refused(f"scales {data.shape} with {scale.shape} and an offset {offset.shape}")
    return data.shape


def _within(indices: Packed | NDArray[Any], entries: int) -> bool:
    """Return whether a palette has an entry for every index that the indices' type can hold."""
    if isinstance(indices, Packed):
        return not indices.element.signed and 1 << indices.element.bits <= entries
    return indices.dtype.kind == "u" and 1 << 8 * indices.dtype.itemsize <= entries


def _look_up(a: Arguments[Shape]) -> Shape:
    a.require_channel_palettes()
    indices, palettes = a.stored("indices"), a.array("lut")
    if len(indices.shape) != 4 or indices.shape[2:] != (1, 1) or palettes.dtype.kind != "f":
        raise a.refused(f"looks {indices.shape} up in {palettes.shape}")
    entries = palettes.shape[-2]
    if not _within(indices, entries):
        numbers = unpacked(indices)
        if numbers.dtype.kind not in "iu" or not 0 <= numbers.min() <= numbers.max() < entries:
            raise a.refused(f"has indices beyond a palette of {entries} entries")
    return indices.shape


def _reshape(a: Arguments[Shape]) -> Shape:
    old, new = a.value("x"), a.integers("shape")
    known = prod(size for size in new if size != -1)
    if new.count(-1) == 1 and known > 0 and prod(old) % known == 0:
        new[new.index(-1)] = prod(old) // known
    if not all(size > 0 for size in new) or prod(new) != prod(old):
        raise a.refused(f"makes {new} of {old}")
    return tuple(new)


def _transpose(a: Arguments[Shape]) -> Shape:
    shape, order = a.value("x"), a.integers("perm")
    axes = _axes(a, order, len(shape))
    if len(axes) != len(shape):
        raise a.refused(f"puts the axes of {shape} in the order {order}")
    return tuple(shape[axis] for axis in axes)


def _concat(a: Arguments[Shape]) -> Shape:
    shapes = a.values("values")
    axis = _axis(a, shapes[0])
    around = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(around) > 1 or len({len(shape) for shape in shapes}) > 1 or a.flag("interleave", False):
        raise a.refused(f"joins {' and '.join(map(str, shapes))}")
    return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])


def _split(a: Arguments[Shape]) -> tuple[Shape, ...]:
    shape = a.value("x")
    axis, parts = _axis(a, shape), len(a.operation.outputs)
    if a.has("split_sizes"):
        sizes = a.integers("split_sizes")
    else:
        parts = a.integer("num_splits")
        sizes = [shape[axis] // parts] * parts if 0 < parts <= shape[axis] else []
    if len(sizes) != len(a.operation.outputs) or min(sizes, default=0) < 1 or sum(sizes) != shape[axis]:
        raise a.refused(f"splits axis {axis} of {shape} into {len(a.operation.outputs)} parts")
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes)


def _slice(a: Arguments[Shape]) -> Shape:
    return tuple(part.stop - part.start for part in slices_of(a, a.value("x")))


def _slice_update(a: Arguments[Shape]) -> Shape:
    x, update = a.value("x"), a.value("update")
    if a.is_constant("begin") and a.is_constant("end"):
        replaced = _slice(a)
    elif a.value("begin") == a.value("end") == (len(x),) and len(update) == len(x):
        # Bounds that the pass computes are checked when it runs.
        whole = [a.flags(f"{name}_mask", len(x)) for name in ("begin", "end")]
        replaced = tuple(
            size if all(masks) else rows for size, rows, *masks in zip(x, update, *whole, strict=True)
        )
    else:
        raise a.refused(f"has bounds {a.value('begin')} and {a.value('end')} of {x} for {update}")
    if update != replaced:
        raise a.refused(f"replaces {replaced} of {x} by {update}")
    return x


def _one_result(a: Arguments[Shape], shape: Shape) -> tuple[Shape, ...]:
    if len(a.operation.outputs) != 1:
        raise a.refused(f"has {len(a.operation.outputs)} results instead of one")
    return (shape,)


def _state(a: Arguments[Shape], states: Mapping[str, Shape]) -> Shape:
    if a.state() not in states:
        raise a.refused(f"uses a state {a.state()!r} that the shard does not have")
    return states[a.state()]


def result_shapes(a: Arguments[Shape], states: Mapping[str, Shape]) -> tuple[Shape, ...] | None:
    """Return the shape of each result of an operation; None if the operation is in no table.

    Raises:
        ArtifactError: the inputs or parameters do not fit the operation.
    """
    match a.operation.kind:
        case "read_state":
            return _one_result(a, _state(a, states))
        case "write_state":
            if a.value("data") != _state(a, states) or a.operation.outputs:
                raise a.refused(f"writes {a.value('data')} to a state of {_state(a, states)}")
            return ()
        case "split":
            return _split(a)
        case kind:
            return _one_result(a, TABLE[kind](a)) if kind in TABLE else None


TABLE: Mapping[str, Rule] = {
    "abs": _unary,
    "add": _binary,
    "cast": _cast,
    "concat": _concat,
    "constexpr_blockwise_shift_scale": _dequantise,
    "constexpr_lut_to_dense": _look_up,
    "conv": _conv,
    "equal": _binary,
    "exp": _unary,
    "gelu": _gelu,
    "identity": _unary,
    "less_equal": _binary,
    "matmul": _matmul,
    "maximum": _binary,
    "mul": _binary,
    "real_div": _binary,
    "reduce_max": _reduce,
    "reduce_mean": _reduce,
    "reduce_min": _reduce,
    "reduce_sum": _reduce,
    "reshape": _reshape,
    "rsqrt": _rsqrt,
    "sigmoid": _unary,
    "silu": _unary,
    "slice_by_index": _slice,
    "slice_update": _slice_update,
    "softmax": _softmax,
    "sub": _binary,
    "tanh": _unary,
    "transpose": _transpose,
}
