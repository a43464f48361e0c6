"""Lower MIL operations to torch, as the reference: results are rounded to fp16, sums are computed in fp32.

Values are fp16 tensors. torch computes elementwise operations on them in fp32 and rounds once. Matrix
products, sums and softmax are widened to fp32 here, since torch may compute fp16 products in fp16.

The bits of a row's sum must not depend on its lane. torch's kernels process four lanes at a time, and add up
the remaining lanes in another order: found at T = 5, 6, 7, 9, 10 and 11 for products (two threads), and at
many T for sums over channels with T innermost. Rounded to fp16, such a difference shows in one of some
thousand rows, so a gate may miss it.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from anespec.runtime.backends.portable.arguments import Arguments, slices_of

Lowering = Callable[[Arguments[Tensor]], Tensor | tuple[Tensor, ...]]

LANES_TOGETHER = 4


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Lowering:
    return lambda a: function(a.value("x"), a.value("y"))


def _unary(function: Callable[[Tensor], Tensor]) -> Lowering:
    return lambda a: function(a.value("x"))


def _reduce(function: Callable[..., Tensor]) -> Lowering:
    """Make a reduction that moves the reduced axes innermost, where each row is summed by itself."""

    def reduced(a: Arguments[Tensor]) -> Tensor:
        x, axes = a.value("x").float(), a.integers("axes")
        innermost = range(-len(axes), 0)
        found = function(x.movedim(axes, [*innermost]).contiguous(), dim=[*innermost], keepdim=True)
        found = found.movedim([*innermost], axes).half()
        return found if a.flag("keep_dims", False) else found.squeeze(axes)

    return reduced


def by_fours(x: Tensor) -> Tensor:
    """Pad more than four rows [..., T, n] with rows of zeros to a multiple of four."""
    rows = x.shape[-2]
    return torch.nn.functional.pad(x, (0, 0, 0, -rows % LANES_TOGETHER)) if rows > LANES_TOGETHER else x


def _matmul(a: Arguments[Tensor]) -> Tensor:
    x, y = a.value("x").float(), a.value("y").float()
    x = x.transpose(-1, -2) if a.flag("transpose_x", False) else x
    y = y.transpose(-1, -2) if a.flag("transpose_y", False) else y
    return torch.matmul(by_fours(x), y)[..., : x.shape[-2], :].half()


def _conv(a: Arguments[Tensor]) -> Tensor:
    """Compute a 1x1 convolution as a matrix product over the channels of each row."""
    a.require_pointwise_conv()
    x, weight = a.value("x"), a.value("weight")
    rows = x[0].flatten(1).transpose(0, 1).float()
    bias = a.value("bias").float() if a.has("bias") else None
    out = torch.nn.functional.linear(by_fours(rows), weight[:, :, 0, 0].float(), bias)[: len(rows)]
    return out.transpose(0, 1).half().reshape(1, -1, *x.shape[2:])


def _dequantise(a: Arguments[Tensor]) -> Tensor:
    """Return scale * (data - offset); each block has one scale and one offset."""
    data = a.value("data").float()
    if a.has("offset"):
        data -= _per_element(a.value("offset"), data)
    return (data * _per_element(a.value("scale"), data)).half()


def _per_element(values: Tensor, data: Tensor) -> Tensor:
    """Repeat the number of every block of `data` so that the shapes can be broadcast; fp32."""
    for axis, (size, blocks) in enumerate(zip(data.shape, values.shape, strict=True)):
        if blocks not in (1, size):
            values = values.repeat_interleave(size // blocks, dim=axis)
    return values.float()


def _look_up(a: Arguments[Tensor]) -> Tensor:
    """Return the weight that indices select from palettes, which groups along the first axis share."""
    a.require_channel_palettes()
    indices, palettes = a.value("indices"), a.value("lut").flatten(1)
    groups = indices.reshape(len(palettes), -1).long()
    return palettes.gather(1, groups).reshape(indices.shape)


def _gelu(a: Arguments[Tensor]) -> Tensor:
    approximate = a.gelu_approximation()
    return torch.nn.functional.gelu(a.value("x").float(), approximate=approximate).half()


def _split(a: Arguments[Tensor]) -> tuple[Tensor, ...]:
    x, axis = a.value("x"), a.integer("axis")
    sizes = a.integers("split_sizes") if a.has("split_sizes") else x.shape[axis] // a.integer("num_splits")
    return tuple(torch.split(x, sizes, dim=axis))


def _slice_update(a: Arguments[Tensor]) -> Tensor:
    updated, bounds = a.value("x").clone(), None
    if not (a.is_constant("begin") and a.is_constant("end")):
        bounds = a.value("begin").tolist(), a.value("end").tolist()
    updated[slices_of(a, tuple(updated.shape), bounds)] = a.value("update")
    return updated


def _cast(a: Arguments[Tensor]) -> Tensor:
    a.require_cast_to_fp16()
    return a.value("x").half()


TABLE: Mapping[str, Lowering] = {
    "abs": _unary(torch.abs),
    "add": _binary(torch.add),
    "cast": _cast,
    "concat": lambda a: torch.cat(a.values("values"), dim=a.integer("axis")),
    "constexpr_blockwise_shift_scale": _dequantise,
    "constexpr_lut_to_dense": _look_up,
    "conv": _conv,
    "equal": _binary(torch.eq),
    "exp": _unary(lambda x: torch.exp(x.float()).half()),
    "gelu": _gelu,
    "identity": _unary(lambda x: x),
    "less_equal": _binary(torch.le),
    "matmul": _matmul,
    "maximum": _binary(torch.maximum),
    "mul": _binary(torch.mul),
    "real_div": _binary(torch.div),
    "reduce_max": _reduce(torch.amax),
    "reduce_mean": _reduce(torch.mean),
    "reduce_min": _reduce(torch.amin),
    "reduce_sum": _reduce(torch.sum),
    "reshape": lambda a: a.value("x").reshape(a.integers("shape")),
    "rsqrt": lambda a: torch.rsqrt(a.value("x").float() + a.number("epsilon", 1e-12)).half(),
    "sigmoid": _unary(lambda x: torch.sigmoid(x.float()).half()),
    "silu": _unary(lambda x: torch.nn.functional.silu(x.float()).half()),
    "slice_by_index": lambda a: a.value("x")[slices_of(a, tuple(a.value("x").shape))],
    "slice_update": _slice_update,
    "softmax": lambda a: torch.softmax(a.value("x").float(), dim=a.integer("axis")).half(),
    "split": _split,
    "sub": _binary(torch.sub),
    "tanh": _unary(lambda x: torch.tanh(x.float()).half()),
    "transpose": lambda a: a.value("x").permute(a.integers("perm")),
}
