"""What a search came to, written down for `convert --tuned` and for people."""

from pathlib import Path

from simulated import SPACE, SimulatedEngine

from anespec.manifests.presets import MatchedModel, Preset
from anespec.manifests.schema import Target
from anespec.manifests.tuned import read_choices
from anespec.system.grades import Grade
from anespec.validate.tuning.report import TunedModel, TuneReport, measure_whole, tune_report
from anespec.validate.tuning.search import search
from anespec.validate.tuning.workbench import Workload

MODEL = MatchedModel(
    architecture="phi3", d=3072, layers=32, heads=24, kv_heads=8, head_dim=128, ff=8192, vocabulary=200064
)
ENGINE = SimulatedEngine(on_cpu=frozenset({"int8-channel"}), wrong=frozenset({"lut4", "lut6"}))


def report(engine: SimulatedEngine = ENGINE) -> TuneReport:
    """Of an engine on which lut8 is best."""
    found = search(SPACE, engine, Workload())
    tuned = TunedModel(MODEL, "Apple M9, macOS 30", Target.MAC, 2048)
    return tune_report(found, measure_whole(found, engine, Workload()), tuned, Workload())


def test_convert_reads_the_choices_back(tmp_path: Path) -> None:
    written = report()
    written.write(tmp_path / "tuned.json")
    choices = read_choices(tmp_path / "tuned.json")
    assert choices == written.choices
    assert choices.weights == "lut8"
    assert choices.topology is not None
    assert sum(choices.topology) == 32


def test_every_choice_says_why_by_what_was_measured(tmp_path: Path) -> None:
    reasons = {reason.choice: reason for reason in report().choices.provenance}
    assert "lut6 the golden gate failed" in reasons["weights"].because
    assert "int8-channel takes" in reasons["weights"].because
    unsearched = {reasons.pop(choice).because for choice in ("range_default", "reshape_hint", "head_outputs")}
    assert unsearched == {"no other value was tried with it"}
    assert all(reason.measured for reason in reasons.values())


def test_the_preset_is_one_that_convert_could_ship_with() -> None:
    preset = report().preset
    assert preset is not None
    assert Preset.model_validate_json(preset.model_dump_json()) == preset
    assert preset.provenance.source == "anespec tune"
    assert preset.provenance.grade is Grade.OURS
    assert "measured whole" in preset.provenance.measured
    assert not preset.differences(MODEL, Target.MAC, "lut8")


def test_the_report_reads_back_whole(tmp_path: Path) -> None:
    written = report()
    written.write(tmp_path / "tuned.json")
    assert TuneReport.model_validate_json((tmp_path / "tuned.json").read_text()) == written
    assert any(trial.seconds is None and trial.measured.why_not for trial in written.trials)
