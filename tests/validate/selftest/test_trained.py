"""Trained weights are tried beside random ones of their shapes: the embedded model's, and the user's."""

from pathlib import Path

import pytest
from stand_in import SCALE, StandInDevice, planted, run_steps, said
from tiny_model import write_gguf

from anespec.embedded import model_path
from anespec.system.errors import AnespecError
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.inputs import trained
from anespec.validate.selftest.inputs.trained import with_trained
from anespec.validate.selftest.records import Outcome, TrialRecord
from anespec.validate.selftest.steps.trained import MAX_RATIO

NAMES = ("embedded", "random-embedded", "model", "random-model")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("somebody") / "secret.gguf")


@pytest.fixture(scope="module")
def records(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[TrialRecord]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTS", planted(off_plan=("embedded",)))
        scale = with_trained(SCALE, model_path(), model)
        return run_steps(tmp_path_factory.mktemp("trained"), "trained", scale=scale)


@pytest.mark.slow
def test_trained_models_run_beside_random_ones_of_their_shapes(records: list[TrialRecord]) -> None:
    assert [record.trial.name for record in records] == list(NAMES)
    assert all(record.done for record in records), [record.failure for record in records]
    told = said(records, "trained")
    assert told.keys() == {"embedded", "model"}
    assert all(text.startswith("ok:") for texts in told.values() for text in texts), told
    by_name = {record.trial.name: record.measured for record in records}
    assert by_name["embedded"].weight_bytes == by_name["random-embedded"].weight_bytes


@pytest.mark.slow
def test_weights_that_make_it_slower_are_told_of(records: list[TrialRecord]) -> None:
    def slower(record: TrialRecord) -> TrialRecord:
        times = tuple(
            time.model_copy(update={"median_ms": 3 * time.median_ms}) for time in record.measured.times
        )
        return record.model_copy(update={"measured": record.measured.model_copy(update={"times": times})})

    assert MAX_RATIO < 3
    told = said([slower(r) if r.trial.name == "model" else r for r in records], "trained")
    (text,) = told["model beside random weights"]
    assert text.startswith("warn: trained weights take 3.0 times as long")
    assert "embedded beside random weights" not in told


def test_a_large_model_is_cut_to_its_first_layers_and_named_nowhere(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "MIN_BYTES", 1)
    scale = with_trained(SCALE, model_path(), model)
    assert scale.sizes["model"].layers == 1
    assert scale.sizes["model"] == scale.sizes["random-model"]
    said_stages: list[str] = []
    bench = Bench(StandInDevice(), scale, tmp_path, said_stages.append)
    artifact = bench.artifact(scale.isolated(size="model", context=64))
    assert len(artifact.manifest.layer_shards) == 1
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["model-1.gguf", "model.gguf"]
    assert not any("secret" in stage for stage in said_stages)


def test_a_model_that_is_none_is_said_before_anything_is_tried(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"something else")
    with pytest.raises(AnespecError):
        with_trained(SCALE, model_path(), tmp_path / "no.gguf")


def test_a_trained_model_that_fails_is_told_of(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTS", planted(refused=("embedded",)))
    scale = with_trained(SCALE, model_path(), None)
    (record,) = run_steps(tmp_path, "trained", names=("embedded",), scale=scale)
    assert record.outcome is Outcome.ERROR
    assert "(-14)" in said([record], "trained")["embedded"][0]
