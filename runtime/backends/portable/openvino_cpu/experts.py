"""Lower a mixture of experts to products over pairs: a row, and an expert whose weight for it is not zero.

What a row does not use would add exact zeros. Pairs are sorted by expert. Where the plugin multiplies each
row by itself even in a product over several (see products), the pairs are cut by expert and each expert is a
branch, which runs if it has pairs. Elsewhere the products are GroupedMatMul, which multiplies each row with
the matrix of its group and reads no other matrix, row by row in f32. In both ways a row's bits do not depend
on other rows.
"""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.experts import Block, are_alike
from anespec.runtime.backends.portable.mil_package import Operation, Packed, unpacked
from anespec.runtime.backends.portable.openvino_cpu.library import (
    Model,
    Output,
    Rows,
    Type,
    Value,
    Values,
    constant,
    elementwise,
    integers,
    joined,
    opset15,
    opset17,
    out,
    rows,
)
from anespec.runtime.backends.portable.openvino_cpu.products import (
    Product,
    Settings,
    multiplies_rows_alone,
)
from anespec.runtime.backends.portable.openvino_cpu.table import (
    TABLE,
    integers_times_scales,
    rounding_matrix,
)
from anespec.runtime.backends.portable.program import Constant, Program


@dataclass(frozen=True)
class _Pairs:
    """The pairs of a pass, expert by expert, and those of an expert in the order of rows.

    `rows` and `experts` are i32 [pairs], `shares` are the weights, f32 [pairs, 1]. `counts` are the numbers
    of pairs of each expert, i32 [experts].
    """

    rows: Output
    experts: Output
    shares: Output
    counts: Output

    @cached_property
    def ends(self) -> Output:
        """Return the numbers of pairs up to and with each expert, i32 [experts]."""
        return out(opset15.cum_sum(self.counts, constant(0, np.int32)))

    @classmethod
    def of(cls, weights: Rows) -> "_Pairs":
        """Find the pairs of weights [1, T, experts]."""
        by_expert = opset15.transpose(opset15.squeeze(weights.output, integers([0])), integers([1, 0]))
        places = opset15.non_zero(by_expert, "i32")
        used = opset15.convert(opset15.not_equal(by_expert, constant(0.0, np.float32)), Type.i32)
        counts = opset15.reduce_sum(used, integers([1]), False)
        shares = opset15.gather_nd(by_expert, opset15.transpose(places, integers([1, 0])))
        return cls(
            rows=_taken(places, constant(1, np.int32)),
            experts=_taken(places, constant(0, np.int32)),
            shares=out(opset15.unsqueeze(shares, integers([1]))),
            counts=out(counts),
        )


def mixture(
    operation: Operation, known: MutableMapping[str, Value], program: Program, settings: Settings
) -> Value:
    """Return each row's sum of the outputs of its experts, times their weights (see portable.experts).

    If the experts differ in more than their matrices and biases, each of them runs on every row.

    Raises:
        ArtifactError: the table lacks an operation of an expert, or a weight is not supported.
    """
    (name,), (weights,) = operation.inputs["x"], operation.inputs["weights"]
    x, shares = rows(known[name]), rows(known[weights])
    if not are_alike(operation.blocks, program):
        return _run_all_experts(operation.blocks, shares, known, program)
    pairs = _Pairs.of(shares)
    every_row = out(opset15.squeeze(x.output, integers([0])))
    mine = _as_rows(_taken(every_row, pairs.rows), x)
    found = _cut(operation.blocks, name, mine, pairs, program, settings)
    if found is None:
        found = _grouped(operation.blocks, ChainMap[str, Value]({name: mine}, known), pairs, program)
    weighted = opset15.multiply(opset15.squeeze(found.output, integers([0])), pairs.shares)
    zeros = opset15.broadcast(constant(0.0, np.float32), opset15.shape_of(every_row))
    places = opset15.unsqueeze(pairs.rows, integers([1]))
    return _as_rows(out(opset15.scatter_nd_update(zeros, places, weighted, "sum")), x)


def _cut(
    blocks: Sequence[Block], name: str, mine: Rows, pairs: _Pairs, program: Program, settings: Settings
) -> Rows | None:
    """Return the outputs of the pairs, with a branch for each expert, which runs if it has pairs.

    An expert's output is as wide as what it reads. None if its products would give a row other bits alone
    than among others.
    """
    convs = (each for each in blocks[0] if each.kind == "conv")
    products = {_stored_product(each, blocks[0], program) for each in convs}
    if not all(each is not None and multiplies_rows_alone(each, settings) for each in products):
        return None
    flat = out(opset15.squeeze(mine.output, integers([0])))
    first, none = constant(0, np.int64), constant(0, np.int32)
    parts = opset15.variadic_split(flat, first, pairs.counts).outputs()
    has_pairs = opset15.split(opset15.greater(pairs.counts, none), first, len(blocks)).outputs()
    found = []
    for block, part, flag in zip(blocks, parts, has_pairs, strict=True):
        inside, outside = (opset15.parameter(flat.get_partial_shape(), Type.f32) for _ in range(2))
        values = Values(program.constants)
        values[name] = _as_rows(out(inside), mine)
        for operation in block:
            _run(Arguments(operation, values, program.constants, program.source), values)
        output = opset15.squeeze(rows(values[block[-1].outputs[0]]).output, integers([0]))
        then, otherwise = opset15.result(output), opset15.result(out(outside))
        branch = opset15.if_op(flag)
        branch.set_then_body(Model([then], [inside], block[-1].name))
        branch.set_else_body(Model([otherwise], [outside], f"no {block[-1].name}"))
        branch.set_input(part, inside, outside)
        found.append(branch.set_output(then, otherwise))
    # Where elementwise operations read the joined rows themselves, OpenVINO 2026.4 gives those of the last
    # expert wrong numbers.
    count = opset15.squeeze(opset15.shape_of(pairs.rows, "i32"), integers([0]))
    every_pair = opset15.range(constant(0, np.int32), count, constant(1, np.int32), Type.i32)
    return _as_rows(_taken(out(opset15.concat(found, 0)), out(every_pair)), mine)


def _stored_product(conv: Operation, block: Block, program: Program) -> Product | None:
    """Return the sizes of a convolution's product; None if the plugin would not round its rows to int8."""
    maker = _maker(conv.inputs["weight"][0], block)
    matrix = None if maker is None else rounding_matrix(maker, program)
    if matrix is None:
        return None
    data, block_size = matrix
    outputs, inputs = data.shape[:2]
    return Product(outputs, inputs, block_size, isinstance(data, Packed))


def _maker(name: str, block: Block) -> Operation | None:
    """Return the operation of an expert that makes a stored weight; None if it is a constant."""
    return next((each for each in block if name in each.outputs), None)


def _grouped(
    blocks: Sequence[Block], values: MutableMapping[str, Value], pairs: _Pairs, program: Program
) -> Rows:
    """Return the outputs of the pairs, with each product of all experts as one."""
    for same in zip(*blocks, strict=True):
        arguments = Arguments(same[0], values, program.constants, program.source)
        if same[0].kind == "conv":
            values[arguments.operation.outputs[0]] = _grouped_product(same, blocks, arguments, pairs)
        elif not same[0].kind.startswith("constexpr_"):
            _run(arguments, values)
    return rows(values[blocks[0][-1].outputs[0]])


def _grouped_product(
    same: Sequence[Operation], blocks: Sequence[Block], arguments: Arguments[Value], pairs: _Pairs
) -> Rows:
    """Return the products of the pairs with the matrices of their experts, plus the experts' biases."""
    arguments.require_pointwise_conv()
    x, constants = rows(arguments.value("x")), arguments.constants
    matrices = _matrices([each.inputs["weight"][0] for each in same], blocks, constants, arguments.source)
    flat = opset15.squeeze(x.output, integers([0]))
    product = opset17.grouped_matmul(flat, matrices, pairs.ends)
    if arguments.has("bias"):
        biases = np.stack([unpacked(constants[each.inputs["bias"][0]]).ravel() for each in same])
        product = opset15.add(product, _taken(constant(biases), pairs.experts))
    return _as_rows(out(product), x)


def _matrices(
    names: Sequence[str], blocks: Sequence[Block], constants: Mapping[str, Constant], source: str
) -> Output:
    """Return the weights of these names, one of each block, as f32 [experts, out, in]."""
    makers = [_maker(name, block) for name, block in zip(names, blocks, strict=True)]
    stored = [Arguments[Value](each, {}, constants, source) for each in makers if each is not None]
    kind = stored[0].operation.kind if stored else None
    if kind == "constexpr_blockwise_shift_scale":
        data = [each.stored("data") for each in stored]
        scales = np.stack([each.array("scale") for each in stored])
        offsets = np.stack([each.array("offset") for each in stored]) if stored[0].has("offset") else None
        return integers_times_scales(partial(joined, data), (len(data), *data[0].shape[:2]), scales, offsets)
    if kind == "constexpr_lut_to_dense":
        matrices = [each.looked_up() for each in stored]
    else:
        matrices = [unpacked(constants[name]) for name in names]
    together = joined(matrices, (len(matrices), *matrices[0].shape[:2]))
    return out(opset15.convert(together, Type.f32))


def _run_all_experts(
    blocks: Sequence[Block], shares: Rows, known: MutableMapping[str, Value], program: Program
) -> Value:
    """Return the weighted sum with every expert run on every row."""
    total: Value | None = None
    parts = opset15.split(shares.output, constant(2, np.int64), len(blocks)).outputs()
    for block, share in zip(blocks, parts, strict=True):
        for operation in block:
            _run(Arguments(operation, known, program.constants, program.source), known)
        output = known[block[-1].outputs[0]]
        weighted = elementwise(opset15.multiply, output, Rows(share, shares.layout))
        total = weighted if total is None else elementwise(opset15.add, total, weighted)
    assert total is not None
    return total


def _run(arguments: Arguments[Value], values: MutableMapping[str, Value]) -> None:
    """Lower an operation of an expert, which has one result."""
    result = TABLE[arguments.operation.kind](arguments)
    assert not isinstance(result, tuple)
    values[arguments.operation.outputs[0]] = result


def _taken(x: Output, places: Output) -> Output:
    """Return the entries of the first axis at these places."""
    return out(opset15.gather(x, places, constant(0, np.int64)))


def _as_rows(flat: Output, like: Rows) -> Rows:
    """Return [rows, C] as rows [1, rows, C]."""
    return Rows(out(opset15.unsqueeze(flat, integers([0]))), like.layout)
