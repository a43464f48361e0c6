"""RMSNorm against float64, far beyond where squares of fp16 numbers live."""

from pathlib import Path

import numpy as np
import pytest
from graphs import program_of, reloaded

from anespec.convert.graph.norm import rms_norm
from anespec.manifests.schema import TensorSpec
from anespec.runtime.backends.portable.openvino_runner import OpenVINORunner
from anespec.runtime.backends.portable.torch_runner import TorchRunner

CHANNELS = 96
WEIGHT = np.linspace(0.25, 4, CHANNELS).astype(np.float16)
INPUT = TensorSpec(name="x", shape=(1, CHANNELS, None, 1))
MAGNITUDES = (0.0, 1e-4, 1e-3, 1e-2, 1.0, 1e2, 1e3, 1e4)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
@pytest.mark.parametrize("runner", [TorchRunner, OpenVINORunner])
def test_norm_equals_float64(
    tmp_path: Path, epsilon: float, runner: type[TorchRunner] | type[OpenVINORunner]
) -> None:
    program = reloaded(
        program_of(lambda v: rms_norm(v["x"], WEIGHT, epsilon, "normed"), (INPUT,), "out"), tmp_path
    )
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(len(MAGNITUDES), CHANNELS)) * np.array(MAGNITUDES)[:, None]
    rows[5, 1:] = 0  # one channel alone: the mean is far below the peak
    x = rows.astype(np.float16)

    found = runner(program, 1).run({"x": x.T[None, :, :, None]})["out"][0, :, :, 0].T

    exact = x.astype(np.float64)
    expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + epsilon) * WEIGHT.astype(np.float64)
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert not found[0].any()
    assert (np.abs(found - expected)[1:] / largest[1:]).max() < 4e-3
