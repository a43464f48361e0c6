"""Find mixtures of experts in a program, so that a library can leave out the experts that no row uses.

The graph runs every expert on every row, and multiplies its output by the row's weight, which is zero for
most experts (convert.graph.experts). Here a whole mixture becomes one operation, and each expert one block of
it. A library may run a block on only those rows whose weight is not zero, and not at all without such a row:
what it leaves out adds exact zeros.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anespec.manifests.channel_layout import CHANNELS_AXIS
from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.mil_package import Operation, Packed, unpacked
from anespec.runtime.backends.portable.program import Program

MIXTURE = "mixture"
"""The operation that replaces a mixture.

Its inputs are `x`, the rows as a channel tensor, and `weights`, a channel tensor with a channel for each
expert. The last operation of block e makes the output of expert e. The result is the sum of all outputs, each
times its weight, in the order of the blocks.
"""

Block = Sequence[Operation]

ROW_BY_ROW = frozenset(
    {"add", "conv", "gelu", "maximum", "minimum", "mul", "real_div", "sigmoid", "silu", "sub", "tanh"}
)
"""The kinds of operations in an expert; each works on every row by itself. Stored weights come besides."""


def fuse_experts(program: Program) -> Program:
    """Return the program with each mixture as one operation; unchanged if it has none."""
    finder, fused, gone = _Finder(program), dict[str, Operation](), set[str]()
    for operation in program.operations:
        if operation.kind == "split" and (found := finder.mixture(operation)) is not None:
            inputs = {"x": (found.x,), "weights": operation.inputs["x"]}
            fused[found.last.name] = Operation(
                MIXTURE, found.last.name, inputs, found.last.outputs, tuple(found.blocks)
            )
            gone |= found.names
    operations = (fused.get(each.name, each) for each in program.operations if each.name not in gone)
    return replace(program, operations=tuple(operations)) if fused else program


@dataclass
class _Found:
    """A mixture: its rows, the blocks so far, the sum's last operation, and the names that it replaces."""

    x: str
    blocks: list[tuple[Operation, ...]]
    last: Operation
    names: set[str]


class _Finder:
    """Matches the operations that follow a split of weights with a mixture."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._place = {each.name: place for place, each in enumerate(program.operations)}
        self._made_by = {name: each for each in program.operations for name in each.outputs}
        self._readers: dict[str, set[str]] = {}
        self._by_name = {each.name: each for each in program.operations}
        for operation in program.operations:
            for name in operation.named_inputs():
                self._readers.setdefault(name, set()).add(operation.name)

    def mixture(self, split: Operation) -> _Found | None:
        """Return the mixture whose experts' weights are the results of `split`; None if there is none."""
        arguments = Arguments[object](split, {}, self._program.constants, self._program.source)
        if not arguments.has("num_splits") or arguments.integer("axis") != CHANNELS_AXIS:
            return None
        found: _Found | None = None
        for weight in split.outputs:
            product = self._only_reader(weight)
            if product is None or product.kind != "mul" or product.inputs["y"] != (weight,):
                return None
            expert = self._expert(product)
            if expert is None:
                return None
            x, block = expert
            names = {product.name, *(each.name for each in block)}
            if found is None:
                found = _Found(x, [block], product, {split.name, *names})
                continue
            total = self._only_reader(found.last.outputs[0])
            sides = {*found.last.outputs, *product.outputs}
            if (
                x != found.x
                or total is None
                or total.kind != "add"
                or {*total.named_inputs("x", "y")} != sides
                or self._only_reader(product.outputs[0]) is not total
            ):
                return None
            found.blocks.append(block)
            found.names |= {found.last.name, *names}
            found.last = total
        if found is not None:
            found.names.discard(found.last.name)
        return found

    def _only_reader(self, name: str) -> Operation | None:
        readers = self._readers.get(name, set())
        if len(readers) != 1 or name in self._program.outputs:
            return None
        return self._by_name[next(iter(readers))]

    def _expert(self, product: Operation) -> tuple[str, tuple[Operation, ...]] | None:
        """Return the rows and the operations of the expert whose output `product` multiplies.

        An operation belongs to the expert if nothing outside of the expert reads its result.
        """
        inside = {product.name: product}
        while True:
            made_inside = {name for each in inside.values() for name in each.outputs}
            sources = {name for each in inside.values() for name in self._values(each)} - made_inside
            sources -= {*product.inputs["y"]}
            joined = [self._made_by[name] for name in sources if self._joins(name, inside)]
            if not joined:
                break
            inside.update((each.name, each) for each in joined)
        del inside[product.name]
        made = self._made_by.get(product.inputs["x"][0])
        if len(sources) != 1 or made is None or made.name not in inside:
            return None
        return sources.pop(), tuple(sorted(inside.values(), key=lambda each: self._place[each.name]))

    def _values(self, operation: Operation) -> Iterator[str]:
        """Yield the inputs of an operation that are no constants."""
        return (name for name in operation.named_inputs() if name not in self._program.constants)

    def _joins(self, name: str, inside: Mapping[str, Operation]) -> bool:
        """Return whether the operation that makes a value works row by row, and only for these operations."""
        maker = self._made_by.get(name)
        return (
            maker is not None
            and name not in self._program.outputs
            and len(maker.outputs) == 1
            and (maker.kind in ROW_BY_ROW or maker.kind.startswith("constexpr_"))
            and self._readers[name] <= {*inside}
        )


CONV_PARAMETERS = ("weight", "bias")
"""The inputs of a convolution whose numbers differ between experts."""


def are_alike(blocks: Sequence[Block], program: Program) -> bool:
    """Return whether all experts have the same operations, and the same constants besides their weights."""
    return len({_form(block, program) for block in blocks}) == 1


def _form(block: Block, program: Program) -> tuple[object, ...]:
    """Return what an expert must share with all others: values by their places, constants by their bytes.

    Of weights and biases only shape and type must be the same.
    """
    places = {name: place for place, each in enumerate(block) for name in each.outputs}

    def form(operation: Operation, key: str, name: str) -> object:
        if name not in program.constants:
            return places.get(name, name)
        stored = program.constants[name]
        is_conv = operation.kind == "conv"
        differs = operation.kind.startswith("constexpr_") or (is_conv and key in CONV_PARAMETERS)
        kind = stored.element if isinstance(stored, Packed) else np.asarray(stored).dtype
        return np.shape(stored), kind, None if differs else unpacked(stored).tobytes()

    return tuple(
        (each.kind, key, *(form(each, key, name) for name in names))
        for each in block
        for key, names in sorted(each.inputs.items())
    )
