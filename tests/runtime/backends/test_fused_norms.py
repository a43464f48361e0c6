"""Norms are found in what convert writes, in nothing else, and give the same numbers as one operation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import layers, program_of, reloaded

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.norm import HEAD, rms_norm
from anespec.manifests.channel_layout import CHANNELS_AXIS
from anespec.manifests.schema import AttentionShape, TensorSpec
from anespec.runtime.backends.portable.fused_norms import RMS_NORM, fuse_norms
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_writes import pruned

D = 64


def norm_program(
    tmp_path: Path, epsilon: float, d: int = D, weight: bool = True, axis: int = CHANNELS_AXIS
) -> Program:
    shape = (1, d, None, 1) if axis == CHANNELS_AXIS else (1, 2, None, d)
    weights = np.linspace(0.5, 1.5, d).astype(np.float16) if weight else None

    def build(v: dict[str, Var]) -> Var:
        return rms_norm(v["x"], weights, epsilon, "normed", axis)

    return reloaded(program_of(build, (TensorSpec(name="x", shape=shape),), "out"), tmp_path)


def norms(program: Program) -> list[float]:
    """The epsilons of the norms that are found."""
    fused = fuse_norms(program)
    found = [op for op in fused.operations if op.kind == RMS_NORM]
    return [float(np.asarray(fused.constants[op.inputs["epsilon"][0]])) for op in found]


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6, 1e-6 / 1024, 0.5])
@pytest.mark.parametrize(("d", "axis"), [(D, CHANNELS_AXIS), (8192, CHANNELS_AXIS), (128, HEAD)])
@pytest.mark.parametrize("weight", [True, False])
def test_a_norm_is_found_with_its_epsilon(
    tmp_path: Path, epsilon: float, d: int, axis: int, weight: bool
) -> None:
    program = norm_program(tmp_path, epsilon, d, weight, axis)
    assert norms(program) == [pytest.approx(max(epsilon, 2.0**-40), rel=2e-3)]
    kinds = [op.kind for op in pruned(fuse_norms(program)).operations if op.kind != "identity"]
    assert kinds == ([RMS_NORM, "mul"] if weight else [RMS_NORM])


def test_a_layer_has_one_before_attention_and_one_before_the_mlp(tmp_path: Path) -> None:
    assert len(norms(reloaded(layers(AttentionShape.GROUPED), tmp_path))) == 2


def _other_axes(program: Program) -> Program:
    """The mean of squares over the lanes."""
    last = [op for op in program.operations if op.kind == "reduce_mean"][-1]
    return replace(program, constants={**program.constants, last.inputs["axes"][0]: np.array([2])})


def _other_operation(kind: str, instead: str) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        changed = [replace(op, kind=instead) if op.kind == kind else op for op in program.operations]
        return replace(program, operations=tuple(changed))

    return change


def _offset(program: Program) -> Program:
    """A reciprocal root that adds something of its own."""
    root = next(op for op in program.operations if op.kind == "rsqrt")
    return replace(program, constants={**program.constants, root.inputs["epsilon"][0]: np.float16(1e-3)})


def _not_the_square(program: Program) -> Program:
    """What is averaged is no square."""
    mean = [op for op in program.operations if op.kind == "reduce_mean"][-1]
    square = next(op for op in program.operations if mean.inputs["x"][0] in op.outputs)
    changed = replace(square, inputs={**square.inputs, "y": ("x",)})
    return replace(program, operations=tuple(changed if op is square else op for op in program.operations))


@pytest.mark.parametrize(
    "change",
    [
        _other_axes,
        _offset,
        _not_the_square,
        _other_operation("reduce_max", "reduce_mean"),
        _other_operation("abs", "silu"),
        _other_operation("rsqrt", "silu"),
        _other_operation("real_div", "mul"),
        _other_operation("maximum", "add"),
    ],
)
def test_what_is_nearly_a_norm_stays_as_it_is(tmp_path: Path, change: Callable[[Program], Program]) -> None:
    program = norm_program(tmp_path, 1e-5)
    assert len(norms(program)) == 1
    assert norms(change(program)) == []


def test_a_value_that_something_else_reads_stays(tmp_path: Path) -> None:
    def build(v: dict[str, Var]) -> Var:
        normed = rms_norm(v["x"], None, 1e-5, "normed")
        return mb.add(x=normed, y=mb.abs(x=v["x"]), name="sum")

    program = reloaded(program_of(build, (TensorSpec(name="x", shape=(1, D, None, 1)),), "out"), tmp_path)
    x = np.random.default_rng(0).normal(size=(1, D, 3, 1)).astype(np.float16)
    found = OpenVINORunner(program, 1).run({"x": x})["out"].astype(np.float64)
    exact = x.astype(np.float64)
    expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) + np.abs(exact)
    assert np.allclose(found, expected, atol=2e-3)
