"""A package by itself predicts what its artifact's runner computes, and its states can be swapped."""

from pathlib import Path

import numpy as np
import pytest
from by_hand import same_bits

from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_shard
from anespec.runtime.backends.portable.package_server import Library, PackagePredictor
from anespec.runtime.backends.runner import Tensor
from anespec.system.errors import ArtifactError, RequestError


@pytest.fixture
def package(stories_mac: Path) -> Path:
    """The layer shard."""
    artifact = Artifact(stories_mac)
    return artifact.shard_path(artifact.manifest.layer_shards[0])


def inputs(predictor: PackagePredictor, t: int, slot: int) -> dict[str, Tensor]:
    """Random hidden rows that are written from `slot` on and see what was written so far."""
    random = np.random.default_rng(slot)
    given = {
        name: random.standard_normal([t if size is None else size for size in shape]).astype(np.float16)
        for name, shape in predictor.inputs.items()
    }
    given["attn_mask"][...] = -1e4
    given["kv_write_mask"][...] = 0
    for lane in range(t):
        given["attn_mask"][0, 0, lane, : slot + lane + 1] = 0
        given["kv_write_mask"][0, 0, slot + lane, lane] = 1
    return given


def test_predicts_what_the_runner_of_the_artifact_computes(stories_mac: Path, package: Path) -> None:
    artifact = Artifact(stories_mac)
    runner = open_shard(artifact, artifact.manifest.layer_shards[0], "torch", threads=1)
    predictor = PackagePredictor(package)
    state = predictor.make_state()
    for slot in (0, 4):
        given = inputs(predictor, 4, slot)
        expected, found = runner.run(given), predictor.predict(given, state)
        assert same_bits(expected["hidden"], found["hidden"])
    for name in predictor.states:
        assert same_bits(runner.read_state(name), state.read(name))


def test_states_are_apart_and_move_between_predictors(package: Path) -> None:
    one, other = PackagePredictor(package), PackagePredictor(package)
    first, second, alone = (one.make_state() for _ in range(3))
    begun, gone_on = inputs(one, 4, 0), inputs(one, 4, 4)
    expected = [one.predict(given, alone)["hidden"] for given in (begun, gone_on)]
    for state in (first, second):
        assert same_bits(one.predict(begun, state)["hidden"], expected[0])
    assert same_bits(other.predict(gone_on, first)["hidden"], expected[1])
    assert same_bits(one.predict(gone_on, second)["hidden"], expected[1])
    for name in one.states:
        assert same_bits(first.read(name), alone.read(name))
        assert same_bits(second.read(name), alone.read(name))


def test_a_state_is_zero_at_first_and_holds_what_is_written(package: Path) -> None:
    predictor = PackagePredictor(package)
    state = predictor.make_state()
    name, shape = next(iter(predictor.states.items()))
    assert not state.read(name).any()
    for value in (np.full(shape, 3, np.float16), np.full(shape, 5, np.float16)):
        state.write(name, value)
        assert same_bits(state.read(name), value)
        predictor.predict(inputs(predictor, 1, 0), state)
        kept, written = state.read(name), value
        assert same_bits(kept[:, :, 1:], written[:, :, 1:])
        assert not same_bits(kept[:, :, :1], written[:, :, :1])
    with pytest.raises(RequestError, match="is of shape"):
        state.write(name, np.zeros((1, 2), np.float16))
    with pytest.raises(RequestError, match="no state 'k_99'"):
        state.read("k_99")


@pytest.mark.parametrize("library", ["torch", "openvino"])
def test_what_does_not_fit_is_refused_by_name(package: Path, library: Library) -> None:
    predictor = PackagePredictor(package, library=library)
    state, given = predictor.make_state(), inputs(predictor, 4, 0)
    predictor.predict(given, state)
    with pytest.raises(RequestError, match="'x' is missing"):
        predictor.predict({name: value for name, value in given.items() if name != "x"}, state)
    with pytest.raises(RequestError, match="'x' is of shape"):
        predictor.predict(given | {"x": given["x"][:, 1:]}, state)
    with pytest.raises(RequestError, match="have different numbers of rows"):
        predictor.predict(given | {"x": given["x"][:, :, 1:]}, state)
    with pytest.raises(RequestError, match="states"):
        predictor.predict(given)


def test_a_stand_in_for_a_compiled_model_is_followed(package: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "m.mlmodelc"
    compiled.mkdir()
    with pytest.raises(ArtifactError, match=r"m.mlmodelc: is not a readable compiled model"):
        PackagePredictor(compiled)
    (compiled / "package").write_text(str(package))
    predictor = PackagePredictor(compiled)
    assert predictor.inputs == PackagePredictor(package).inputs
    assert predictor.functions == ("main",)
    with pytest.raises(ArtifactError, match="no function 'rows_64'"):
        PackagePredictor(compiled, "rows_64")
