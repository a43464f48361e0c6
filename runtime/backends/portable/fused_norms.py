"""Replace the graph's RMSNorm, some twenty operations, by one `rms_norm`.

The graph divides a row twice before it adds up the squares, to stay within fp16's range (convert.graph.norm).
A library that computes in f32 needs no such division: x / sqrt(mean(x^2) + epsilon) is the same number, in
one kernel instead of twenty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from anespec.runtime.backends.portable.program import Constant, Operation, Program

RMS_NORM = "rms_norm"
"""The operation that replaces a norm without its weight; its inputs are `x`, `axes` and `epsilon`."""


def fuse_norms(program: Program) -> Program:
    """Return `program` with the last operation of every norm replaced by an `rms_norm`.

    The other operations of the norm remain in the list, unused (see `pruned`).
    """
    read = _Reader(program)
    constants: dict[str, Constant] = dict(program.constants)
    operations = []
    for operation in program.operations:
        norm = read.norm(operation)
        if norm is not None:
            epsilon = f"{operation.name}/epsilon"
            constants[epsilon] = np.array(norm.epsilon, np.float32)
            inputs = {"x": (norm.x,), "axes": (norm.axes,), "epsilon": (epsilon,)}
            operation = replace(operation, kind=RMS_NORM, inputs=inputs)
        operations.append(operation)
    return replace(program, operations=tuple(operations), constants=constants)


@dataclass(frozen=True)
class _Norm:
    """A norm: its input, the constant with its axes, and the epsilon added to the mean of the squares."""

    x: str
    axes: str
    epsilon: float


class _OtherError(Exception):
    """An operation is not part of a norm."""


class _Reader:
    """Matches the operations that lead to a value with the pattern of a norm."""

    def __init__(self, program: Program) -> None:
        self._constants = program.constants
        self._made_by: Mapping[str, Operation] = {
            name: operation for operation in program.operations for name in operation.outputs
        }
        self._products = {
            (operation.inputs["x"][0], operation.inputs["y"][0]): operation.outputs[0]
            for operation in program.operations
            if operation.kind == "mul"
        }

    def norm(self, last: Operation) -> _Norm | None:
        """Return the norm of which `last` is the last operation; None if there is none."""
        try:
            return self._norm(last)
        except _OtherError:
            return None

    def _norm(self, last: Operation) -> _Norm:
        unit, inverse = self._sides(last, "mul")
        nearly, rest = self._sides(self._maker(inverse), "mul")
        mean, root = self._under_root(nearly)
        size = self._maker(mean, "reduce_mean")
        self._require(self._only(self._maker(self._only(size), "abs")) == unit)
        axes = self._axes(size)
        squares, own = self._under_root(rest)
        mean_square = self._maker(squares, "reduce_mean")
        self._require(self._axes(mean_square) == axes)
        self._require(self._square_of(self._only(mean_square)) == self._products.get((unit, nearly)))
        self._require(own == self._products.get((root, nearly)))
        unit_scale, unit = self._unscaled(unit)
        root_scale, root = self._unscaled(root)
        x, divisor = self._sides(self._maker(unit), "real_div")
        peak, part = self._sides(self._maker(divisor), "mul")
        numerator, same = self._sides(self._maker(root), "real_div")
        self._require(same == peak)
        found, _ = self._sides(self._maker(peak), "maximum")
        largest = self._maker(found, "reduce_max")
        self._require(
            self._axes(largest) == axes and self._only(self._maker(self._only(largest), "abs")) == x
        )
        root_epsilon = self._number(numerator) * root_scale * self._number(part) / unit_scale
        return _Norm(x, size.inputs["axes"][0], root_epsilon**2)

    def _under_root(self, name: str) -> tuple[str, str]:
        """Return the operands of a reciprocal root: one value, and the value whose square is added to it."""
        root = self._maker(name, "rsqrt")
        self._require(self._number(root.inputs["epsilon"][0]) == 0)
        value, square = self._sides(self._maker(root.inputs["x"][0]), "add")
        return value, self._square_of(square)

    def _square_of(self, name: str) -> str:
        one, other = self._sides(self._maker(name), "mul")
        self._require(one == other)
        return one

    def _unscaled(self, name: str) -> tuple[float, str]:
        """Return the factor of a product, 1 if there is none, and the other value."""
        operation = self._maker(name)
        if operation.kind != "mul":
            return 1.0, name
        x, factor = self._sides(operation, "mul")
        return self._number(factor), x

    def _sides(self, operation: Operation, kind: str) -> tuple[str, str]:
        self._require(operation.kind == kind)
        return operation.inputs["x"][0], operation.inputs["y"][0]

    @staticmethod
    def _only(operation: Operation) -> str:
        return operation.inputs["x"][0]

    def _maker(self, name: str, kind: str | None = None) -> Operation:
        operation = self._made_by.get(name)
        if operation is None or kind not in (None, operation.kind):
            raise _OtherError
        return operation

    def _axes(self, operation: Operation) -> tuple[int, ...]:
        found = self._constants.get(operation.inputs["axes"][0])
        keeps = (
            self._constants.get(operation.inputs["keep_dims"][0]) if "keep_dims" in operation.inputs else None
        )
        if not isinstance(found, np.ndarray) or not isinstance(keeps, np.ndarray) or not keeps.all():
            raise _OtherError
        return tuple(int(axis) for axis in found.ravel())

    def _number(self, name: str) -> float:
        found = self._constants.get(name)
        if not isinstance(found, np.ndarray) or found.size != 1:
            raise _OtherError
        return float(found.item())

    @staticmethod
    def _require(held: bool) -> None:
        if not held:
            raise _OtherError
