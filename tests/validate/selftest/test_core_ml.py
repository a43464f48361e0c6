"""The self-test over coremltools' own classes, their native part stood in for."""

from pathlib import Path

import pytest
from plans import device
from stand_in import SCALE
from standin_core_ml import NativeModel, stand_in

from anespec.manifests.residency import Device, Placement
from anespec.system.errors import MissingPackageError
from anespec.validate.selftest.child import ChildLine, TrialRequest, run_trial
from anespec.validate.selftest.devices.choosing import COREML, PORTABLE, device_here
from anespec.validate.selftest.devices.coreml import CoreMLDevice
from anespec.validate.selftest.records import Measured, Trial
from anespec.validate.selftest.steps import STEPS
from anespec.validate.selftest.steps.step import placement


def run(folder: Path, step_id: str, name: str) -> Measured:
    facts = CoreMLDevice().facts()
    step = next(step for step in STEPS if step.id == step_id)
    trial: Trial = next(trial for trial in step.trials(SCALE, facts) if trial.name == name)
    told: list[ChildLine] = []
    run_trial(TrialRequest(trial=trial, scale=SCALE, device=COREML, folder=str(folder)), told.append)
    assert told[-1].measured is not None, told[-1]
    return told[-1].measured


def test_a_mac_is_tested_with_core_ml(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_here().name == PORTABLE
    stand_in(monkeypatch)
    assert device_here().name == COREML
    assert device_here().engine
    facts = CoreMLDevice().facts()
    assert (facts.target.value, facts.engine) == ("mac", True)
    assert "macOS 15.5" in facts.system


def test_a_mac_without_an_engine_asks_core_ml_only_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingPackageError, match="--core-ml cannot run here: macOS 15"):
        device_here(core_ml=True)
    stand_in(monkeypatch)
    monkeypatch.setattr(NativeModel, "get_all_compute_devices", lambda: [device(Device.CPU)])
    assert (device_here().name, device_here().engine) == (PORTABLE, False)
    assert (device_here(core_ml=True).name, device_here(core_ml=True).engine) == (COREML, False)
    facts = CoreMLDevice().facts()
    assert not facts.engine
    assert "no Neural Engine" in facts.device


@pytest.mark.parametrize(("step", "name"), [("kv", "outside"), ("states", "slice_update")])
def test_steps_run_through_coremltools(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, step: str, name: str
) -> None:
    stand_in(monkeypatch)
    measured = run(tmp_path_factory.mktemp("coreml"), step, name)
    assert all(check.held for check in measured.checks), measured.checks
    if step != "states":
        assert measured.planned is not None
        assert placement(measured.planned) is Placement.ANE
        assert measured.comparisons[0].error < 0.01
        assert {time.units.value for time in measured.times} == {"device", "cpu"}
