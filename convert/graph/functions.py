"""Build the MIL functions of a shard: the same graph for each function, over shared constants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anespec.convert.graph.builder import Function, Program, Var, ct, mb, types
from anespec.manifests.channel_layout import ChannelLayout, shape_in
from anespec.manifests.schema import MAIN, ShardFunction, StateSpec, TensorSpec

Build = Callable[[Mapping[str, Var], ChannelLayout], Sequence[Var]]
"""A callback that builds a graph: from inputs and states by name, and the function's layout, to outputs."""


@dataclass(frozen=True)
class ShardProgram:
    """A MIL program whose functions have the Core ML types of their inputs and outputs."""

    program: Program


@dataclass(frozen=True)
class OtherBody:
    """Another graph over the same inputs, with its own `outputs`.

    A package has it in additional functions, whose names begin with `prefix`.
    """

    prefix: str
    build: Build
    outputs: Sequence[str]


@dataclass(frozen=True)
class ProgramScope:
    """The functions of a shard with their T; the first is the default function.

    A function for any T has one symbolic dimension, 1..t_max, with `default_rows` as its default.
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
        """Return the program whose functions have these inputs and states, and the outputs of `build`.

        The operations that compute the outputs get the outputs' names. For each function there is also one of
        each of the `others`, over the same constants.
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
    """Build one function with `rows` as T, and set the types of its inputs and outputs."""
    symbol = getattr(rows, "symbol", rows)
    placeholders = {
        spec.name: mb.TensorSpec(
            _shape(spec, symbol, layout), dtype=types.numpy_type_to_builtin_type(_dtype(spec))
        )
        for spec in inputs
    } | {spec.name: mb.StateTensorSpec(spec.shape, dtype=types.fp16) for spec in states}
    # coremltools numbers operations without a name over the whole process. The numbers are reset, so that the
    # result does not depend on earlier builds, and constants of all functions have the same names, by which
    # the writer finds those that they share.
    mb.name_count.clear()
    with Function(placeholders, ct.target.iOS18) as function:
        made = list(build(function.inputs, layout))
        for value, name in zip(made, outputs, strict=True):
            # A final `identity` to set the name would not do: Core ML's plan had an unknown device for one.
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
