"""Trials in processes of their own: what ends one ends nothing else, and an interrupted run goes on."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in import DEVICE, SCALE, StandInDevice, inline, planted

from anespec.validate.selftest import runner
from anespec.validate.selftest.child import TrialRequest
from anespec.validate.selftest.devices.device import DeviceFacts
from anespec.validate.selftest.inputs.scale import FULL_SCALE, Scale, shortened
from anespec.validate.selftest.records import Failure, Outcome, Trial, TrialRecord
from anespec.validate.selftest.runner import run_in_child
from anespec.validate.selftest.selftest import Selftest, chosen_scale, chosen_steps
from anespec.validate.selftest.steps import STEPS

HERE = Path(__file__).parent


def trial(step: str, name: str) -> Trial:
    found = next(found for found in STEPS if found.id == step)
    return next(t for t in found.trials(SCALE, StandInDevice().facts()) if t.name == name)


def in_child(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tried: Trial, scale: Scale = SCALE, **faults: object
) -> tuple[TrialRecord, list[str]]:
    monkeypatch.setenv("FAULTS", planted(**faults))
    monkeypatch.setenv("REALLY", "1")
    monkeypatch.syspath_prepend(str(HERE))
    stages: list[str] = []
    asked = TrialRequest(trial=tried, scale=scale, device=DEVICE, folder=str(folder))
    file = folder / f"{tried.key}.asked"
    file.write_text(asked.model_dump_json())
    return run_in_child(asked, file, stages.append), stages


@pytest.mark.slow
def test_a_process_tells_its_stages_and_what_it_found(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    record, stages = in_child(monkeypatch, folder, trial("cpu", "d=32"))
    assert record.outcome is Outcome.DONE
    assert record.measured.load_seconds is not None
    assert stages[0] == "starting"
    assert stages[-1] == "the first prediction"
    assert not list(folder.glob("*.words"))


@pytest.mark.slow
def test_a_process_that_is_killed_is_noted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    record, _ = in_child(monkeypatch, folder, trial("plans", "lut6"), killed=("lut6",))
    assert record.outcome is Outcome.KILLED
    assert record.failure is not None
    assert (record.failure.stage, record.failure.text[:7]) == ("predicting", "SIGKILL")


@pytest.mark.slow
def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    # Silent for so long is a process that hangs, and, on a machine with much to do, one that only starts.
    impatient = SCALE.model_copy(update={"silence": 3.0})
    record, _ = in_child(monkeypatch, folder, trial("plans", "lut4"), impatient, hangs=("lut4",))
    assert record.outcome is Outcome.HUNG


def test_a_process_that_cannot_even_start_is_noted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked = TrialRequest(
        trial=trial("cpu", "d=32"), scale=SCALE, device="no_such_module:Device", folder=str(folder)
    )
    file = folder / "broken.asked"
    file.write_text(asked.model_dump_json())
    record = run_in_child(asked, file, lambda _: None)
    assert record.outcome is Outcome.ERROR
    assert record.failure is not None
    assert "no_such_module" in record.failure.text


class Counting:
    """A RunTrial that answers at once, and is interrupted or ends everything where it is told to."""

    def __init__(self, at: int | None = None, end: type[BaseException] = KeyboardInterrupt) -> None:
        self.asked: list[str] = []
        self.at, self.end = at, end

    def __call__(self, asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        self.asked.append(asked.trial.key)
        if len(self.asked) == self.at:
            raise self.end
        failure = Failure(stage="loading", text="no")
        return TrialRecord(trial=asked.trial, outcome=Outcome.ERROR, seconds=0.0, failure=failure)


def selftest(folder: Path, runs: Counting, *, again: bool = False, scale: Scale = SCALE) -> Selftest:
    return Selftest(folder, DEVICE, scale, True, chosen_steps(("cpu", "repeat")), again=again, run_trial=runs)


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder, first = tmp_path / "run", Counting(at=3)
    with pytest.raises(KeyboardInterrupt):
        selftest(folder, first).run()
    second = Counting()
    told: list[tuple[int, int]] = []
    report = selftest(folder, second).run(resumed=lambda kept, total: told.append((kept, total)))
    keys = [record.trial.key for step in report.steps for record in step.trials]
    assert first.asked[:2] + second.asked == keys
    assert first.asked[2] == second.asked[0]
    assert told == [(2, len(keys))]
    third = Counting()
    assert selftest(folder, third).run().steps == report.steps
    assert third.asked == []
    anew = Counting()
    selftest(folder, anew, again=True).run()
    assert anew.asked == keys
    other = Counting()
    selftest(folder, other, scale=SCALE.model_copy(update={"soak": 1})).run()
    assert other.asked == keys


def test_what_took_the_whole_machine_down_is_not_tried_again(tmp_path: Path) -> None:
    folder, first = tmp_path / "run", Counting(at=2, end=SystemExit)
    with pytest.raises(SystemExit):
        selftest(folder, first).run()
    second = Counting()
    report = selftest(folder, second).run()
    records = [record for step in report.steps for record in step.trials]
    assert [record.outcome for record in records][:3] == [Outcome.ERROR, Outcome.LOST, Outcome.ERROR]
    assert records[1].trial.key not in second.asked
    texts = [finding.text for step in report.steps for finding in step.findings]
    assert any("the machine or the self-test ended" in text for text in texts)


def test_what_there_is_no_room_for_is_not_tried(tmp_path: Path) -> None:
    tried = trial("cpu", "d=32").model_copy(update={"needs_bytes": 1 << 60})
    step = next(step for step in STEPS if step.id == "cpu")
    runs = Counting()
    large = replace(step, trials=lambda scale, facts: (tried,))
    report = Selftest(tmp_path / "run", DEVICE, SCALE, True, (large,), run_trial=runs).run()
    assert runs.asked == []
    (finding,) = report.steps[0].findings
    assert "of disk" in finding.text
    assert finding.level.value == "not here"


def test_models_go_when_nothing_needs_them_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    there: list[bool] = []

    def watched(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        if asked.trial.build.size == "small":
            there.append((folder / "models" / "tiny.gguf").exists())
        return inline(asked, file, say)

    report = Selftest(folder, DEVICE, SCALE, True, chosen_steps(["cpu"]), run_trial=watched).run()
    assert [record.outcome for record in report.steps[0].trials] == [Outcome.DONE] * 2
    assert there == [False]
    assert not list((folder / "models").iterdir())


def test_artifacts_go_when_no_later_trial_needs_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    there: dict[str, set[str]] = {}

    def makes(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        for kind, ending in (("artifacts", ".anespec"), ("compiled", "")):
            (folder / kind / f"{asked.trial.build.name}{ending}").mkdir(parents=True, exist_ok=True)
        there[asked.trial.name] = {path.name for path in (folder / "compiled").iterdir()}
        return TrialRecord(trial=asked.trial, outcome=Outcome.DONE, seconds=1.0)

    Selftest(folder, DEVICE, SCALE, True, chosen_steps(["topology"]), run_trial=makes).run()
    full = [name for names in there.values() for name in names if name.startswith("full")]
    assert len(set(full)) == 2
    assert all(len(names) == 1 for names in there.values() if any(n.startswith("full") for n in names))
    assert not list((folder / "compiled").iterdir())
    assert not list((folder / "artifacts").iterdir())


def test_the_full_model_can_be_cut_short() -> None:
    assert [sum(t) for t in shortened(FULL_SCALE, 2).topologies] == [2]
    assert shortened(FULL_SCALE, 22).topologies == ((20, 2), (8, 8, 6), (4, 4, 4, 4, 4, 2))
    assert shortened(FULL_SCALE, 22).sizes["full"].layers == 22
    assert chosen_scale(False, None, True) is FULL_SCALE
    assert chosen_scale(False, None, False).sizes["full"].layers == 2
    assert "full" not in chosen_scale(True, None, True).sizes


class Flooding(StandInDevice):
    """A device whose library writes without end to where answers go."""

    def facts(self) -> DeviceFacts:
        """It never gets there."""
        line = b"x" * 65536
        while True:
            os.write(int(os.environ["ANSWERS"]), line)


def test_a_process_that_says_too_much_is_ended(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(runner, "MAX_OUTPUT", 1 << 20)
    monkeypatch.syspath_prepend(str(HERE))
    # The lifeline is 0, errors go to 2; answers get the next number that is free.
    monkeypatch.setenv("ANSWERS", "3")
    asked = TrialRequest(
        trial=trial("cpu", "d=32"), scale=SCALE, device="test_processes:Flooding", folder=str(folder)
    )
    file = folder / "flood.asked"
    file.write_text(asked.model_dump_json())
    record = run_in_child(asked, file, lambda _: None)
    assert record.outcome is Outcome.KILLED
    assert record.failure is not None
    assert "printed more than" in record.failure.text
