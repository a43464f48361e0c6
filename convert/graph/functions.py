"""A shard's MIL functions: the same graph once for each that the shard has, over the same constants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.convert.graph.builder import Function, Program, Var, ct, mb, types
from anespec.manifests.channel_layout import ChannelLayout, shape_in
from anespec.manifests.schema import MAIN, ShardFunction, StateSpec, TensorSpec

Build = Callable[[Mapping[str, Var], ChannelLayout], Sequence[Var]]
"""From inputs and states by name to outputs, in a function of this layout."""


@dataclass(frozen=True)
class ShardProgram:
    """A program; its functions know the Core ML types of their inputs and outputs."""

    program: Program


@dataclass(frozen=True)
class OtherBody:
    """What a package's functions whose names begin with `prefix` make of the same inputs: their outputs."""

    prefix: str
    build: Build
    outputs: Sequence[str]


@dataclass(frozen=True)
class ProgramScope:
    """Return T for each of a shard's functions; the first is the default.

    A function of any T has one symbol, 1..t_max with `default_rows` as its default.
    """

    default_rows: int
    t_max: int
    functions: tuple[ShardFunction, ...] = (ShardFunction(name=MAIN),)

    def program(
        self,
        build: Build,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[str],
        states: Sequence[StateSpec] = (),
        others: Sequence[OtherBody] = (),
    ) -> ShardProgram:
        """The program whose functions have these inputs and states, and return what `build` makes of them.

        The operations that make the outputs take their names. Each of the `others` has a function beside each
        of these, over the same constants.
        """
        program = Program()
        for body in (OtherBody("", build, outputs), *others):
            for function in self.functions:
                rows = function.rows or ct.RangeDim(1, self.t_max, default=self.default_rows)
                program.add_function(
                    body.prefix + function.name,
                    _function(body.build, inputs, body.outputs, states, rows, function.layout),
                )
        program.default_function_name = self.functions[0].name
        program.export_as_multifunction = len(program.functions) > 1
        return ShardProgram(program)


def _function(
    build: Build,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    states: Sequence[StateSpec],
    rows: int | ct.RangeDim,
    layout: ChannelLayout,
) -> Function:
    """One function of so many rows, its types noted on it."""
    symbol = getattr(rows, "symbol", rows)
    placeholders = {
        spec.name: mb.TensorSpec(
            _shape(spec, symbol, layout), dtype=types.numpy_type_to_builtin_type(_dtype(spec))
        )
        for spec in inputs
    } | {spec.name: mb.StateTensorSpec(spec.shape, dtype=types.fp16) for spec in states}
    # Operations without a name are numbered over a whole process: neither what it built before may show, nor
    # may one function's names differ from another's, by which the writer knows what they share.
    mb.name_count.clear()
    with Function(placeholders, ct.target.iOS18) as function:
        made = list(build(function.inputs, layout))
        for value, name in zip(made, outputs, strict=True):
            # A last `identity` for the name alone was seen on a device unknown to Core ML's plan.
            value.name = value.op.name = name
        function.set_outputs(made)
    function.set_input_types(
        tuple(ct.TensorType(spec.name, _shape(spec, rows, layout), dtype=_dtype(spec)) for spec in inputs)
    )
    function.set_output_types([ct.TensorType(name, dtype=np.float16) for name in outputs])
    return function


def _dtype(spec: TensorSpec) -> type[np.float16] | type[np.int32]:
    return np.int32 if spec.dtype == "int32" else np.float16


def _shape(spec: TensorSpec, rows: object, layout: ChannelLayout) -> tuple[object, ...]:
    return tuple(rows if size is None else size for size in shape_in(spec.shape, layout))
