"""A shard on Core ML: what its states hold, what a failure leaves, and what its results must be."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from by_hand import run_tokens, same_bits
from converting import build
from core_ml_faults import Fault, plan_faults
from light_core_ml import LightCoreML, LightModel, LightState, meet_here
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import LayerShard, Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import resolve_backend
from anespec.runtime.backends.coreml.backend import CoreMLBackend, probe_of
from anespec.runtime.backends.coreml.compiled import CompiledShard
from anespec.runtime.backends.coreml.library import ComputeUnits, ModelState
from anespec.runtime.backends.coreml.load_probe import made_up_inputs
from anespec.runtime.backends.coreml.runner import CoreMLRunner
from anespec.runtime.backends.runner import Tensor
from anespec.runtime.passes import StateLostError
from anespec.system.errors import ArtifactError


@pytest.fixture
def shard(stories_mac: Path) -> LayerShard:
    return Artifact(stories_mac).manifest.layer_shards[0]


@pytest.fixture
def model(stories_mac: Path, shard: LayerShard, tmp_path: Path) -> LightModel:
    compiled = LightCoreML().compile(stories_mac / shard.path, tmp_path / "layers.mlmodelc")
    return LightModel(compiled, None)


@pytest.fixture
def runner(shard: LayerShard, model: LightModel) -> Iterator[CoreMLRunner]:
    runner = CoreMLRunner(shard, {None: model})
    yield runner
    runner.close()


def inputs(stories_mac: Path, shard: LayerShard) -> dict[str, Tensor]:
    """A pass of a block."""
    compiled = CompiledShard(shard, stories_mac / "m.mlmodelc", made=True)
    probe = probe_of(Artifact(stories_mac).manifest, compiled, ComputeUnits.CPU_ONLY)
    return made_up_inputs(probe, probe.passes[0])


def test_every_width_that_is_run_is_met_first(stories_mac: Path, shard: LayerShard) -> None:
    """Core ML makes a model of flexible shapes anew for each of them."""
    manifest = Artifact(stories_mac).manifest
    compiled = CompiledShard(shard, stories_mac / "m.mlmodelc", made=True)
    probe = probe_of(manifest, compiled, ComputeUnits.CPU_ONLY)
    rows = [tried.inputs["x"][2] for tried in probe.passes]
    assert rows[0] == manifest.block
    assert sorted(rows) == list(manifest.widths)
    assert len(rows) > 1


class UsedModel(LightModel):
    """Its new states are not zeros."""

    def make_state(self) -> ModelState:
        state = LightState(self.name, self.states)
        for value in state.values.values():
            value[...] = np.nan
        return state


def test_states_are_zeros_whatever_core_ml_makes(shard: LayerShard, model: LightModel) -> None:
    model.__class__ = UsedModel
    runner = CoreMLRunner(shard, {None: model})
    for state in shard.states:
        assert not runner.read_state(state.name).any()


def test_slots_are_read_and_written_bit_for_bit(shard: LayerShard, runner: CoreMLRunner) -> None:
    name, shape = shard.states[0].name, shard.states[0].shape
    whole = np.random.default_rng(1).integers(0, 0x7C00, shape).astype(np.uint16).view(np.float16)
    runner.write_state(name, whole)
    assert same_bits(runner.read_state(name), whole)
    assert same_bits(runner.read_slots(name, 7, 5), whole[:, :, 7:12])
    runner.write_slots(name, 2, whole[:, :, 7:12])
    expected = whole.copy()
    expected[:, :, 2:7] = whole[:, :, 7:12]
    assert same_bits(runner.read_state(name), expected)
    for other in shard.states[1:]:
        assert not runner.read_state(other.name).any()


@pytest.mark.parametrize("fault", [Fault("predict", text="0x1d"), Fault("predict", strange=True)])
def test_after_a_failed_pass_all_states_are_zeros_again(
    stories_mac: Path, shard: LayerShard, runner: CoreMLRunner, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    for state in shard.states:
        runner.write_state(state.name, np.ones(state.shape, np.float16))
    plan_faults(monkeypatch, fault)
    runner.start(inputs(stories_mac, shard))
    with pytest.raises(StateLostError, match=rf"^{shard.path}: "):
        runner.finish()
    for state in shard.states:
        assert not runner.read_state(state.name).any()
    runner.start(inputs(stories_mac, shard))
    assert runner.finish().tensor("hidden").shape == (1, 64, 4, 1)


def test_a_gate_sees_what_the_shard_gives_whatever_it_is(
    stories_mac: Path, shard: LayerShard, runner: CoreMLRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_faults(monkeypatch, Fault("predict", strange=True))
    assert np.isnan(runner.run(inputs(stories_mac, shard))["hidden"]).all()


def test_the_caller_keeps_its_inputs(stories_mac: Path, shard: LayerShard, runner: CoreMLRunner) -> None:
    """coremltools writes to the dict that it is given."""
    given = inputs(stories_mac, shard)
    before = {name: value.copy() for name, value in given.items()}
    runner.run(given)
    assert given.keys() == before.keys()
    assert all(given[name].dtype == np.float16 and same_bits(given[name], before[name]) for name in given)


def test_a_width_that_no_function_runs_is_refused(
    stories_mac: Path, shard: LayerShard, model: LightModel
) -> None:
    runner = CoreMLRunner(shard, {8: model})
    with pytest.raises(ArtifactError, match="no function for passes of 4 rows"):
        runner.run(inputs(stories_mac, shard))


def test_a_state_of_another_shape_is_refused(
    shard: LayerShard, model: LightModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_faults(monkeypatch, Fault("make_state", strange=True))
    with pytest.raises(ArtifactError, match=r"its state k_0 has shape .* but the manifest says"):
        CoreMLRunner(shard, {None: model})


def test_where_one_shard_lost_its_states_those_of_all_are_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=2))
    path = build(source, tmp_path / "m.anespec", target=Target.MAC, context=64, topology=(1, 1)).path
    meet_here(monkeypatch, LightCoreML())
    verifier = CoreMLBackend("coreml", ComputeUnits.CPU_ONLY, LightCoreML()).open(Artifact(path), 1)
    verifier.import_slots(0, 0, [np.ones_like(value) for value in verifier.export_slots(0, 0, 5)])
    assert all(value.all() for value in verifier.export_slots(0, 0, 5))
    plan_faults(monkeypatch, Fault("predict", "layer_01", text="0x1d"))
    with pytest.raises(StateLostError, match="layer_01"):
        run_tokens(verifier, [1, 2, 3])
    assert not any(value.any() for value in verifier.export_slots(0, 0, 64))


def test_auto_is_core_ml_where_there_is_a_neural_engine_and_the_artifact_is_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anespec.runtime.backends.coreml.library.has_neural_engine", lambda: True)
    assert resolve_backend("auto", Target.MAC) == "openvino"  # no macOS here
    monkeypatch.setattr("anespec.runtime.backends.coreml.library.unavailable", lambda: None)
    assert resolve_backend("auto", Target.MAC) == resolve_backend("auto") == "coreml"
    assert resolve_backend("auto", Target.CPU) == "openvino"
    assert resolve_backend("coreml-cpu", Target.CPU) == "coreml-cpu"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("anespec.runtime.backends.portable.mlx_gpu.library.on_gpu", lambda: True)
    assert resolve_backend("auto", Target.MAC) == "coreml"
    assert resolve_backend("auto", Target.CPU) == "mlx"
    monkeypatch.setattr("anespec.runtime.backends.coreml.library.has_neural_engine", lambda: False)
    assert resolve_backend("auto", Target.MAC) == "mlx"
    monkeypatch.setattr("anespec.runtime.backends.portable.mlx_gpu.library.on_gpu", lambda: False)
    assert resolve_backend("auto", Target.MAC) == resolve_backend("auto", Target.CPU) == "openvino"
    monkeypatch.undo()
    monkeypatch.setattr("anespec.runtime.backends.coreml.library.unavailable", lambda: None)
    monkeypatch.setattr("anespec.runtime.backends.coreml.library.has_neural_engine", lambda: False)
    assert resolve_backend("auto", Target.MAC) == "openvino"
