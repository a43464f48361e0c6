"""Where there is no Core ML the portable backend is tested, and what needs Core ML says so."""

from pathlib import Path

import pytest
from stand_in import SCALE

from anespec.validate.findings import Level
from anespec.validate.selftest.child import Asked, Told, run_trial
from anespec.validate.selftest.devices.choosing import PORTABLE
from anespec.validate.selftest.devices.device import NotHereError
from anespec.validate.selftest.devices.portable import PortableDevice
from anespec.validate.selftest.records import Outcome, TrialRecord
from anespec.validate.selftest.selftest import differences
from anespec.validate.selftest.steps import STEPS


@pytest.mark.parametrize(
    ("step_id", "name"),
    [
        ("kv", "outside"),
        pytest.param("layout", "rows_last", marks=pytest.mark.slow),
        ("states", "packed"),
    ],
)
def test_steps_run_on_openvino(tmp_path: Path, step_id: str, name: str) -> None:
    facts = PortableDevice().facts()
    step = next(step for step in STEPS if step.id == step_id)
    trial = next(trial for trial in step.trials(SCALE, facts) if trial.name == name)
    told: list[Told] = []
    run_trial(Asked(trial=trial, scale=SCALE, device=PORTABLE, folder=str(tmp_path)), told.append)
    measured = told[-1].measured
    assert measured is not None, told[-1]
    record = TrialRecord(trial=trial, outcome=Outcome.DONE, seconds=0.0, measured=measured)
    assert [finding.level for finding in step.judge([record], facts)] == [Level.OK]
    if step_id == "kv":
        assert measured.planned is None
        assert "only Core ML" in (measured.no_plan or "")
        assert measured.predicted is not None
    assert [finding.level for finding in differences([record], facts)] == [Level.NOT_HERE]


def test_nothing_but_core_ml_makes_a_plan() -> None:
    with pytest.raises(NotHereError):
        PortableDevice().plan(None, None, Path())  # type: ignore[arg-type]
