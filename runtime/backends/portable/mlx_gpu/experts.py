"""Run the experts that a row uses, with one product for all of them.

A pass is described before it is computed, so it cannot depend on how many rows use an expert. But the router
gives every row the same number of experts, those of the highest ranks. So a pass over T rows has T times that
many pairs of a row and an expert, and MLX multiplies each pair by itself: other rows change no bit of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from anespec.manifests.channel_layout import CHANNELS_AXIS, DECLARED, layout_of
from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.experts import are_alike
from anespec.runtime.backends.portable.mlx_gpu.table import (
    TABLE,
    Value,
    channel_rows,
    from_channel_rows,
    tensor,
    times_rows,
    wide,
)
from anespec.runtime.backends.portable.mlx_gpu.weights import Weight, stacked
from anespec.runtime.backends.portable.program import Operation, Program

Describe = Callable[[Operation], Arguments[Value]]


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture, which are alike.

    `used` is the number of experts that a row may use. `weights` and `biases` [experts, out] are those of all
    experts, by the name of the first expert's convolution.
    """

    used: int
    weights: Mapping[str, Weight]
    biases: Mapping[str, mx.array]


def stacked_experts(mixture: Operation, program: Program, known: Mapping[str, Value]) -> Experts | None:
    """Return the experts of a mixture with their weights stacked; `known` has those of each expert.

    None if they differ in more than the numbers of their weights, or if the graph does not say how many
    experts a row uses.
    """
    used = most_used(program, mixture.inputs["weights"][0])
    if used is None or not are_alike(mixture.blocks, program):
        return None
    weights: dict[str, Weight] = {}
    biases: dict[str, mx.array] = {}
    for same in zip(*mixture.blocks, strict=True):
        if same[0].kind != "conv":
            continue
        found = [known[each.inputs["weight"][0]] for each in same]
        together = stacked([each for each in found if not isinstance(each, mx.array)])
        if together is None:
            return None
        weights[same[0].name] = together
        if "bias" in same[0].inputs:
            rows = [np.asarray(program.constants[each.inputs["bias"][0]], np.float32) for each in same]
            biases[same[0].name] = mx.array(np.stack([each.ravel() for each in rows]))
    return Experts(min(used, len(mixture.blocks)), weights, biases)


def most_used(program: Program, weights: str) -> int | None:
    """Return the largest number of experts with a weight other than zero in a row of `weights`.

    The graph chooses experts whose rank, a sum of 0 and 1, is at most a constant (convert.graph.experts).
    None if no such comparison leads to the weights.
    """
    made_by = {name: each for each in program.operations for name in each.outputs}
    found, waiting, seen = set[float](), [weights], set[str]()
    while waiting:
        name = waiting.pop()
        operation = made_by.get(name)
        if name in seen or operation is None or operation.kind == "conv":
            continue
        seen.add(name)
        bound = _bound(operation, made_by, program)
        if bound is not None:
            found.add(bound)
        else:
            waiting += operation.named_inputs()
    (used,) = found if len(found) == 1 else (None,)
    return None if used is None or used < 1 or used != int(used) else int(used)


def _bound(operation: Operation, made_by: Mapping[str, Operation], program: Program) -> float | None:
    """Return the number of ranks below a constant that an operation compares ranks with, else None."""
    forms = {"less_equal": ("x", "y", 1), "sub": ("y", "x", 0)}
    if operation.kind not in forms:
        return None
    ranks, limit, further = forms[operation.kind]
    rank, constant = (
        made_by.get(operation.inputs[ranks][0]),
        program.constants.get(operation.inputs[limit][0]),
    )
    is_rank = rank is not None and rank.kind == "reduce_sum"
    if not is_rank or not isinstance(constant, np.ndarray) or constant.size != 1:
        return None
    return float(constant.item()) + further


def run_used_experts(
    mixture: Operation, experts: Experts, describe: Describe, known: dict[str, Value]
) -> mx.array:
    """Return each row's sum of the outputs of its experts, times their weights, in the order of experts.

    `describe` returns the arguments of an operation, with values from `known`.
    """
    arguments = describe(mixture)
    x, by_expert = tensor(arguments, "x"), wide(tensor(arguments, "weights"))
    layout = layout_of(x.shape) or DECLARED
    rows = channel_rows(wide(x), layout)
    weights = channel_rows(by_expert, layout_of(by_expert.shape) or DECLARED)
    chosen = mx.sort(mx.argsort(-mx.abs(weights), axis=1)[:, : experts.used], axis=1)
    weights = mx.take_along_axis(weights, chosen, axis=1)[:, :, None]
    (name,), pairs = mixture.inputs["x"], chosen.reshape(-1)
    known[name] = from_channel_rows(mx.repeat(rows, experts.used, axis=0), layout)
    output = known[name]
    for operation in mixture.blocks[0]:
        if operation.kind.startswith("constexpr_"):
            continue
        if operation.kind == "conv":
            output = _product(describe(operation), experts, pairs)
        else:
            output = only_result(TABLE[operation.kind](describe(operation)))
        known[operation.outputs[0]] = output
    known[name] = x
    assert isinstance(output, mx.array)
    outputs = channel_rows(output, layout).reshape(len(rows), experts.used, -1)
    # What is no number in an expert whose weight is zero must not spoil the row.
    weighted = mx.where(weights == 0, 0, outputs * weights)
    total = weighted[:, 0]
    for place in range(1, experts.used):
        total = total + weighted[:, place]
    return from_channel_rows(total, layout)


def _product(a: Arguments[Value], experts: Experts, pairs: mx.array) -> mx.array:
    """Return a convolution of the pairs, each with the weight and the bias of its expert [pairs]."""
    name = a.operation.name

    def product(rows: mx.array) -> mx.array:
        out = experts.weights[name].gathered(rows[:, None], pairs)[:, 0]
        return out + mx.take(experts.biases[name], pairs, axis=0) if name in experts.biases else out

    return times_rows(a, product)


def run_all_experts(mixture: Operation, describe: Describe, known: dict[str, Value]) -> mx.array:
    """Return each row's weighted sum with every expert run on every row."""
    x = tensor(describe(mixture), "x")
    weights = wide(tensor(describe(mixture), "weights"))
    parts = mx.split(weights, len(mixture.blocks), axis=CHANNELS_AXIS)
    total: mx.array | None = None
    for block, part in zip(mixture.blocks, parts, strict=True):
        output = x
        for operation in block:
            if not operation.kind.startswith("constexpr_"):
                output = only_result(TABLE[operation.kind](describe(operation)))
                known[operation.outputs[0]] = output
        weighted = mx.where(part == 0, 0, output * part)
        total = weighted if total is None else total + weighted
    assert total is not None
    return total


def only_result(results: mx.array | tuple[mx.array, ...]) -> mx.array:
    """Return the result of an operation that has one."""
    assert isinstance(results, mx.array)
    return results
