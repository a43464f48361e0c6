"""RMSNorm against float64, far beyond where squares of fp16 numbers live, and where tiny numbers are zero."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from graphs import program_of, reloaded
from mlx_here import mlx_runner
from numpy.typing import NDArray
from old_norm import divided_once

from anespec.convert.graph.builder import Var
from anespec.convert.graph.norm import HEAD, rms_norm
from anespec.manifests.channel_layout import CHANNELS_AXIS
from anespec.manifests.schema import TensorSpec
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.torch_cpu.runner import FlushingRunner, TorchRunner
from anespec.runtime.backends.runner import ShardRunner

Rows = NDArray[np.float16]
Runner = Callable[[Program, int], ShardRunner]
RUNNERS: tuple[Runner, ...] = (TorchRunner, FlushingRunner, OpenVINORunner, mlx_runner)
SMALLEST_NORMAL, LARGEST = 2.0**-14, 65504.0
SCALED_EPSILON = 1e-6 / 32**2
"""Of a family whose hidden states are kept smaller: its root is a subnormal number."""
MOST_ERROR = 0.002
"""Of a row, beside its float64 norm: four roundings to fp16."""


def hostile_rows(d: int) -> Rows:
    """Rows of every loudness; one channel louder than the others, even alone; the ends of fp16."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=d) * size for size in (0, 1e-4, 1e-3, 1e-2, 1, 30, 1e3, 12e3)]
    for ratio in (50, 130, 150, 300, 500, 520, 1000, 5000):
        for base in (0.02, 1.0, 10.0):
            rows.append(base * (rng.choice([-1, 1], size=d) if ratio % 100 else rng.normal(size=d)))
            rows[-1][3] = min(ratio * base, LARGEST)
    for alone in (SMALLEST_NORMAL, 0.1, LARGEST):
        rows += [np.zeros(d), np.full(d, alone)]
        rows[-2][d // 2] = -alone
    loudest = np.clip(rng.normal(size=d) * LARGEST / 4, -LARGEST, LARGEST)
    return np.array([*rows, loudest, np.full(d, 2.0**-20)], np.float16)


def normed(
    runner: Runner, rows: Rows, norm: Callable[[Var], Var], folder: Path, axis: int = CHANNELS_AXIS
) -> NDArray[np.float64]:
    """The rows after the norm, as a reloaded program gives them."""
    shape = (1, rows.shape[1], None, 1) if axis == CHANNELS_AXIS else (1, 1, None, rows.shape[1])
    program = program_of(lambda v: norm(v["x"]), (TensorSpec(name="x", shape=shape),), "out")
    given = rows.T[None, :, :, None] if axis == CHANNELS_AXIS else rows[None, None]
    found = runner(reloaded(program, folder), 1).run({"x": given})["out"]
    return np.asarray(found[0, :, :, 0].T if axis == CHANNELS_AXIS else found[0, 0], np.float64)


def errors(found: NDArray[np.float64], rows: Rows, epsilon: float, flushed: bool) -> NDArray[np.float64]:
    """Each row's relative error; what the norm should give is computed from what there is of a row."""
    exact = rows.astype(np.float64)
    if flushed:
        exact[np.abs(exact) < SMALLEST_NORMAL] = 0
    expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + max(epsilon, 1e-30))
    size = np.linalg.norm(expected, axis=1)
    # A row that epsilon makes tiny is made of numbers that have few bits, or are flushed.
    few_bits = SMALLEST_NORMAL * math.sqrt(rows.shape[1])
    return np.linalg.norm(found - expected, axis=1) / np.maximum(size, few_bits)


@pytest.mark.parametrize(("d", "epsilon"), [(64, 1e-6), (3072, SCALED_EPSILON), (8192, 1e-5), (16384, 1e-3)])
@pytest.mark.parametrize("runner", RUNNERS)
def test_norm_equals_float64(tmp_path: Path, d: int, epsilon: float, runner: Runner) -> None:
    rows = hostile_rows(d)
    found = normed(runner, rows, lambda x: rms_norm(x, None, epsilon, "normed"), tmp_path)
    assert np.isfinite(found).all()
    assert not found[~rows.any(axis=1)].any(), "a row of zeros must stay one"
    assert errors(found, rows, epsilon, runner is FlushingRunner).max() < MOST_ERROR


@pytest.mark.parametrize("runner", RUNNERS)
def test_heads_are_normalised_with_their_weight(tmp_path: Path, runner: Runner) -> None:
    rows, weight = hostile_rows(128), np.linspace(0.25, 4, 128).astype(np.float16)
    found = normed(runner, rows, lambda x: rms_norm(x, weight, 1e-6, "normed", HEAD), tmp_path, HEAD)
    unweighted = found / weight.astype(np.float64)
    assert errors(unweighted, rows, 1e-6, runner is FlushingRunner).max() < MOST_ERROR


@pytest.mark.parametrize("epsilon", [0.0, 1e-30, 0.5, 1e4])
def test_any_epsilon_leaves_zeros_and_finite_numbers(tmp_path: Path, epsilon: float) -> None:
    rows = hostile_rows(64)
    found = normed(FlushingRunner, rows, lambda x: rms_norm(x, None, epsilon, "normed"), tmp_path)
    assert np.isfinite(found).all()
    assert not found[~rows.any(axis=1)].any()
    loud = np.abs(rows).max(axis=1) > 1
    assert errors(found, rows, epsilon, True)[loud].max() < 10 * MOST_ERROR


def test_one_division_is_wrong_where_subnormal_numbers_are_flushed(tmp_path: Path) -> None:
    """What these tests are for: they would find the formula of before."""
    rows = hostile_rows(3072)

    def once(runner: Runner, epsilon: float, times: float) -> NDArray[np.float64]:
        folder = tmp_path / f"{runner.__name__}-{epsilon}-{times}"
        return normed(runner, rows, lambda x: divided_once(x, None, epsilon, "normed", times=times), folder)

    assert errors(once(FlushingRunner, 1e-6, 1), rows, 1e-6, True).max() > 10 * MOST_ERROR
    assert errors(once(FlushingRunner, 1e-6, 4), rows, 1e-6, True).max() > 2 * MOST_ERROR
    assert errors(once(TorchRunner, 1e-6, 1), rows, 1e-6, False).max() < MOST_ERROR
    scaled = once(FlushingRunner, SCALED_EPSILON, 1)
    assert np.isnan(scaled).any(), "the root of its epsilon is flushed, and zeros are divided by zero"
