"""Lower MIL operations to MLX.

Values are fp32. States and stored constants stay fp16. A product with one of them has fp16 factors and is
rounded to fp16, as on a Neural Engine; its sums are fp32. Products with quantised weights have fp32 factors:
MLX's CPU build adds up fp16 ones in fp16, with an error of 0.7 in sums of 512 numbers of size 1.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from math import pi, sqrt
from typing import TypeAlias

import mlx.core as mx

from anespec.manifests.channel_layout import DECLARED, ChannelLayout, layout_of
from anespec.runtime.backends.portable.arguments import Arguments, slices_of
from anespec.runtime.backends.portable.fused_norms import RMS_NORM
from anespec.runtime.backends.portable.mlx_gpu.weights import Weight, of_integers, of_palettes

Value: TypeAlias = mx.array | Weight
Lowering = Callable[[Arguments[Value]], mx.array | tuple[mx.array, ...]]


def tensor(a: Arguments[Value], key: str) -> mx.array:
    """Return an input that is no quantised weight, as it is held."""
    return _plain(a, key, a.value(key))


def _tensors(a: Arguments[Value], key: str) -> Iterator[mx.array]:
    return (_plain(a, key, value) for value in a.values(key))


def _plain(a: Arguments[Value], key: str, value: Value) -> mx.array:
    if not isinstance(value, mx.array):
        raise a.refused(f"takes a weight for its input {key!r}")
    return value


def wide(value: mx.array) -> mx.array:
    """Return fp16 numbers as fp32; fp32 numbers, booleans and integers stay."""
    return value.astype(mx.float32) if value.dtype == mx.float16 else value


def _wide(a: Arguments[Value], key: str = "x") -> mx.array:
    return wide(tensor(a, key))


def _binary(function: Callable[[mx.array, mx.array], mx.array]) -> Lowering:
    return lambda a: function(_wide(a, "x"), _wide(a, "y"))


def _unary(function: Callable[[mx.array], mx.array]) -> Lowering:
    return lambda a: function(_wide(a))


def _reduce(function: Callable[..., mx.array]) -> Lowering:
    """Make a reduction that moves the reduced axes innermost, where each row is summed by itself."""

    def reduced(a: Arguments[Value]) -> mx.array:
        x = _wide(a)
        axes = [axis % x.ndim for axis in a.integers("axes")]
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        sizes = x.shape
        innermost = mx.contiguous(x.transpose(*kept, *axes)).reshape(*(sizes[axis] for axis in kept), -1)
        found = function(innermost, axis=-1)
        if not a.flag("keep_dims", False):
            return found
        return found.reshape([1 if axis in axes else size for axis, size in enumerate(sizes)])

    return reduced


def _rms_norm(a: Arguments[Value]) -> mx.array:
    x = _wide(a)
    (axis,) = a.integers("axes")
    found = mx.fast.rms_norm(mx.contiguous(mx.moveaxis(x, axis, -1)), None, a.number("epsilon", 0.0))
    return mx.moveaxis(found, -1, axis)


def _matmul(a: Arguments[Value]) -> mx.array:
    x, y = tensor(a, "x"), tensor(a, "y")
    if mx.float16 in (x.dtype, y.dtype):
        x, y = x.astype(mx.float16), y.astype(mx.float16)
    x = x.swapaxes(-1, -2) if a.flag("transpose_x", False) else x
    y = y.swapaxes(-1, -2) if a.flag("transpose_y", False) else y
    return wide(x @ y)


def _conv(a: Arguments[Value]) -> mx.array:
    weight = a.value("weight")
    if isinstance(weight, mx.array):
        raise a.refused("has a weight that the pass computes")
    out = times_rows(a, weight.times)
    return out + _wide(a, "bias").reshape(1, -1, 1, 1) if a.has("bias") else out


def times_rows(a: Arguments[Value], product: Callable[[mx.array], mx.array]) -> mx.array:
    """Lower a 1x1 convolution without its bias to a product of its rows [T, in]."""
    a.require_pointwise_conv()
    x = _wide(a)
    layout = layout_of(x.shape) or DECLARED
    return from_channel_rows(product(channel_rows(x, layout)), layout)


def channel_rows(x: mx.array, layout: ChannelLayout) -> mx.array:
    """Return the rows [T, C] of a channel tensor."""
    return x.squeeze((0, layout.single_axis)).T


def from_channel_rows(rows: mx.array, layout: ChannelLayout) -> mx.array:
    """Return rows [T, C] as a channel tensor."""
    return mx.expand_dims(rows.T, (0, layout.single_axis))


def _gelu(a: Arguments[Value]) -> mx.array:
    x = _wide(a)
    if a.gelu_approximation() == "tanh":
        return 0.5 * x * (1 + mx.tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + mx.erf(x * sqrt(0.5)))


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _split(a: Arguments[Value]) -> tuple[mx.array, ...]:
    x, axis = tensor(a, "x"), a.integer("axis")
    if not a.has("split_sizes"):
        return tuple(mx.split(x, a.integer("num_splits"), axis))
    ends = list(accumulate(a.integers("split_sizes")))
    return tuple(mx.split(x, ends[:-1], axis))


def _slice_update(a: Arguments[Value]) -> mx.array:
    """Replace a slice, whose place may be computed in the pass; such a slice is never cut off at the end."""
    x, update = tensor(a, "x"), tensor(a, "update").astype(tensor(a, "x").dtype)
    axes = tuple(range(x.ndim))
    if a.is_constant("begin") and a.is_constant("end"):
        begin = mx.array([part.start for part in slices_of(a, x.shape)])
    else:
        moving = [0 if whole else 1 for whole in a.flags("begin_mask", x.ndim)]
        begin = tensor(a, "begin").astype(mx.int32) * mx.array(moving, mx.int32)
    return mx.slice_update(x, update, begin, axes)


def _cast(a: Arguments[Value]) -> mx.array:
    a.require_cast_to_fp16()
    return tensor(a, "x").astype(mx.float32)


def _comparison(function: Callable[[mx.array, mx.array], mx.array]) -> Lowering:
    """Compare numbers rounded to fp16: two fp32 values that round to the same one are equal."""
    return lambda a: function(*(tensor(a, key).astype(mx.float16) for key in ("x", "y")))


def slot_write(state: mx.array, new: mx.array, slots: mx.array) -> mx.array:
    """Return a state [1, n, S, m] with row t of [1, n, T, m], rounded to fp16, in slot slots[t].

    If nothing else holds the state, MLX writes in place.
    """
    written = state.astype(mx.float16)
    written[:, :, slots] = new.astype(mx.float16)
    return written


def slot_read(held: mx.array, slots: mx.array, shown: mx.array) -> mx.array:
    """Return the slots [1, n, rows, m] that rows show, and zeros for those rows that show none, in fp32."""
    return wide(mx.take(held, slots, axis=2)) * shown


TABLE: Mapping[str, Lowering] = {
    "abs": _unary(mx.abs),
    "add": _binary(mx.add),
    "cast": _cast,
    "concat": lambda a: mx.concatenate([*_tensors(a, "values")], axis=a.integer("axis")),
    "conv": _conv,
    "equal": _comparison(mx.equal),
    "exp": _unary(mx.exp),
    "gelu": _gelu,
    "identity": lambda a: tensor(a, "x"),
    "less_equal": _comparison(mx.less_equal),
    "matmul": _matmul,
    "maximum": _binary(mx.maximum),
    "mul": _binary(mx.multiply),
    "real_div": _binary(mx.divide),
    "reduce_max": _reduce(mx.max),
    "reduce_mean": _reduce(mx.mean),
    "reduce_min": _reduce(mx.min),
    "reduce_sum": _reduce(mx.sum),
    "reshape": lambda a: tensor(a, "x").reshape(a.integers("shape")),
    RMS_NORM: _rms_norm,
    "rsqrt": lambda a: mx.rsqrt(_wide(a) + a.number("epsilon", 1e-12)),
    "sigmoid": _unary(mx.sigmoid),
    "silu": _unary(_silu),
    "slice_by_index": lambda a: tensor(a, "x")[slices_of(a, tensor(a, "x").shape)],
    "slice_update": _slice_update,
    "softmax": lambda a: mx.softmax(_wide(a), axis=a.integer("axis")),
    "split": _split,
    "sub": _binary(mx.subtract),
    "tanh": _unary(mx.tanh),
    "transpose": lambda a: tensor(a, "x").transpose(a.integers("perm")),
}

STORED: Mapping[str, Callable[[Arguments[Value]], Weight]] = {
    "constexpr_blockwise_shift_scale": of_integers,
    "constexpr_lut_to_dense": of_palettes,
}
"""The operations that make weights of constants, once for all passes."""
