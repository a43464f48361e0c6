"""Weights for a Neural Engine, which may take subnormal numbers for zero: no channel is lost by that."""

from pathlib import Path

import numpy as np
import pytest
from arrays import ArraySource
from converting import build
from graphs import projection_of, reloaded
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from tiny_model import TinyModel, write_gguf

from anespec.convert.weights.encoding import FP16_NORMAL
from anespec.convert.weights.formats import ENGINE_ENCODINGS, choose
from anespec.convert.weights.stored import store
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends.portable.program import load_program
from anespec.runtime.backends.portable.torch_cpu.runner import FlushingRunner, TorchRunner

ON_ENGINE = (Target.MAC, Target.IPHONE)
HALF_STEP = float(FP16_NORMAL) / 2
COLUMNS = 64
MAGNITUDES = (1.0, 0.02, 7e-3, 1e-3, 2e-4, 5e-5)
"""Of channels; from the third on an int8 scale that reaches the largest number alone is subnormal."""

rows_of_all_magnitudes = st.tuples(
    npst.arrays(np.float32, (8, 6), elements=st.floats(-1, 1, width=32)),
    npst.arrays(np.float32, (8, 1), elements=st.sampled_from(np.array([0, 1e-7, *MAGNITUDES], np.float32))),
).map(lambda drawn: drawn[0] * drawn[1])  # fmt: skip


def quiet_channels() -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    return (rng.uniform(-1, 1, (len(MAGNITUDES), COLUMNS)) * np.array(MAGNITUDES)[:, None]).astype(np.float32)


def columns_by(
    runner: type[TorchRunner], weight_format: WeightFormat, target: Target, folder: Path
) -> NDArray[np.float32]:
    """The weight as `runner` multiplies with it: rows with a single one pick out its columns."""
    program = reloaded(projection_of(ArraySource(quiet_channels()), weight_format, target), folder)
    x = np.eye(COLUMNS, dtype=np.float16)[None, :, :, None]
    return np.asarray(runner(program, 1).run({"x": x})["out"][0, :, :, 0], np.float32)


def test_the_scales_of_processors_vanish_where_subnormal_numbers_do(tmp_path: Path) -> None:
    """What artifacts for a Neural Engine held too: whole channels were gone."""
    found = columns_by(FlushingRunner, WeightFormat.INT8_CHANNEL, Target.CPU, tmp_path)
    assert not found[2:].any()
    assert found[:2].any(axis=1).all()


@pytest.mark.parametrize("weight_format", [WeightFormat.INT8_CHANNEL, WeightFormat.FP16])
def test_quiet_channels_stay_within_half_a_step(tmp_path: Path, weight_format: WeightFormat) -> None:
    values = quiet_channels()
    found = columns_by(FlushingRunner, weight_format, Target.MAC, tmp_path)
    errors = np.abs(found - values).max(axis=1)
    rounding = 2.0**-7 * np.abs(values).max(axis=1)
    assert (errors[2:] <= HALF_STEP * 1.001).all()
    assert (errors <= np.maximum(HALF_STEP * 1.001, rounding)).all()
    assert found[:5].any(axis=1).all()


@pytest.mark.parametrize("target", ON_ENGINE)
@pytest.mark.parametrize("weight_format", ENGINE_ENCODINGS)
def test_flushing_changes_no_weight(tmp_path: Path, weight_format: WeightFormat, target: Target) -> None:
    plain, flushed = (
        columns_by(runner, weight_format, target, tmp_path) for runner in (TorchRunner, FlushingRunner)
    )
    assert np.array_equal(plain, flushed)


@pytest.mark.slow
@given(rows_of_all_magnitudes, st.sampled_from(list(ENGINE_ENCODINGS)))
def test_nothing_stored_is_subnormal_and_no_error_is_larger_for_it(
    values: NDArray[np.float32], weight_format: WeightFormat
) -> None:
    source = ArraySource(np.repeat(values, 2, axis=0))
    kinds = (choose(weight_format, source.shape[1], source.kind, t) for t in (Target.CPU, Target.MAC))
    exact, normal = (store(source, choice) for choice in kinds)
    for array in normal.parts.values():
        if array.dtype == np.float16:
            assert ((array == 0) | (np.abs(array) >= FP16_NORMAL)).all()
    if "scale" in normal.parts:
        assert (normal.parts["scale"] >= FP16_NORMAL).all()
    assert normal.added.max_error <= max(2 * exact.added.max_error, exact.added.max_error + HALF_STEP * 1.001)


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", [WeightFormat.INT8_CHANNEL, WeightFormat.LUT6, WeightFormat.FP16])
def test_no_projection_of_an_artifact_holds_one(tmp_path: Path, weight_format: WeightFormat) -> None:
    model = TinyModel()
    quiet = {name: values * np.float32(1e-3) for name, values in model.tensors().items() if values.ndim == 2}
    weights = WeightChoice(weight_format)
    source = write_gguf(tmp_path / "quiet.gguf", model, tensors=quiet)
    folder = build(source, tmp_path / "m.anespec", target=Target.MAC, weights=weights).path
    artifact, checked = Artifact(folder), 0
    for shard in artifact.manifest.shards:
        for name, constant in load_program(artifact.shard_path(shard)).constants.items():
            if isinstance(constant, np.ndarray) and constant.dtype == np.float16 and constant.ndim >= 4:
                checked += 1
                assert ((constant == 0) | (np.abs(constant) >= FP16_NORMAL)).all(), name
    assert checked >= len(artifact.manifest.tensors)
