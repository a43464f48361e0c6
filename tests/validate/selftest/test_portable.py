"""Where there is no Core ML the portable backend is tested, and what needs Core ML says so."""

from pathlib import Path

import numpy as np
import pytest
from stand_in import SCALE

import anespec
from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.graph_choices import ExpertForm
from anespec.manifests.schema import Target
from anespec.validate.findings import Level
from anespec.validate.selftest.child import ChildLine, TrialRequest, run_trial
from anespec.validate.selftest.devices.choosing import PORTABLE
from anespec.validate.selftest.devices.device import NotHereError
from anespec.validate.selftest.devices.portable import PortableDevice
from anespec.validate.selftest.inputs.real_sizes import FEW_TOKENS, ONE_OF_EACH, in_circles, write_real
from anespec.validate.selftest.records import Outcome, TrialRecord
from anespec.validate.selftest.selftest import differences
from anespec.validate.selftest.steps import STEPS


@pytest.mark.parametrize(
    ("step_id", "name"),
    [
        ("kv", "outside"),
        pytest.param("layout", "rows_last", marks=pytest.mark.slow),
        ("states", "packed"),
        pytest.param("mixers", "delta", marks=pytest.mark.slow),
        pytest.param("mixers", "mamba2", marks=pytest.mark.slow),
        pytest.param("mixers", "convolution", marks=pytest.mark.slow),
        pytest.param("mixers", "mixture", marks=pytest.mark.slow),
        pytest.param("mixers", "delta, state outside", marks=pytest.mark.slow),
        pytest.param("mixers", "delta, chunks of 8, broadcast", marks=pytest.mark.slow),
    ],
)
def test_steps_run_on_openvino(tmp_path: Path, step_id: str, name: str) -> None:
    facts = PortableDevice().facts()
    step = next(step for step in STEPS if step.id == step_id)
    trial = next(trial for trial in step.trials(SCALE, facts) if trial.name == name)
    told: list[ChildLine] = []
    run_trial(TrialRequest(trial=trial, scale=SCALE, device=PORTABLE, folder=str(tmp_path)), told.append)
    measured = told[-1].measured
    assert measured is not None, told[-1]
    record = TrialRecord(trial=trial, outcome=Outcome.DONE, seconds=0.0, measured=measured)
    assert [finding.level for finding in step.judge([record], facts)] == [Level.OK]
    if step_id == "kv":
        assert measured.planned is None
        assert "only Core ML" in (measured.no_plan or "")
        assert measured.predicted is not None
    assert [finding.level for finding in differences([record], facts)] == [Level.NOT_HERE]


def test_a_circle_is_each_groups_rows_one_place_further() -> None:
    assert in_circles(np.arange(10), 4).tolist() == [3, 0, 1, 2, 7, 4, 5, 6, 9, 8]


@pytest.mark.slow
def test_a_models_text_runs_in_circles(tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    write_real(gguf, ONE_OF_EACH["convolution"], vocabulary=FEW_TOKENS, circle=6)
    with GGUFFile(gguf) as file:
        convert(ConversionPlan(SourceModel(file), ConvertOptions(target=Target.CPU)), tmp_path / "m.anespec")
    with anespec.load(tmp_path / "m.anespec", gates="never", drafter="none") as model:
        (choice,) = model.generate([6 * 50 + 4], max_tokens=8, ignore_eos=True).choices
    assert [token - 6 * 50 for token in choice.output_ids] == [5, 0, 1, 2, 3, 4, 5, 0]


def test_nothing_but_core_ml_makes_a_plan() -> None:
    with pytest.raises(NotHereError):
        PortableDevice().plan(None, None, Path())  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_mixture_is_one_wide_mlp_for_a_neural_engine(tmp_path: Path) -> None:
    write_real(tmp_path / "m.gguf", ONE_OF_EACH["mixture"], vocabulary=FEW_TOKENS)
    with GGUFFile(tmp_path / "m.gguf") as file:
        model = SourceModel(file)
        chosen = ConversionPlan(model, ConvertOptions(target=Target.MAC, context=512)).experts
    assert chosen is not None and chosen.form is ExpertForm.WIDE
