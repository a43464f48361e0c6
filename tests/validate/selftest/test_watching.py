"""What a person sees who waits: which trial runs, and how long the rest takes on this machine."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from stand_in import DEVICE, SCALE

from anespec.cli.verbs.selftest import _Lines
from anespec.validate.selftest import course
from anespec.validate.selftest.child import TrialRequest
from anespec.validate.selftest.course import Progress
from anespec.validate.selftest.records import Outcome, TrialRecord
from anespec.validate.selftest.selftest import Selftest, chosen_steps


def watched(folder: Path, *steps: str, seconds: Callable[[str], float]) -> list[Progress]:
    """Progress of a run whose trials take so many seconds, by their key."""

    def tried(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        say("loading")
        return TrialRecord(trial=asked.trial, outcome=Outcome.DONE, seconds=seconds(asked.trial.key))

    found: list[Progress] = []
    silent = tuple(replace(step, judge=lambda records, facts: []) for step in chosen_steps(steps))
    Selftest(folder, DEVICE, SCALE, True, silent, run_trial=tried).run(found.append)
    return found


def test_the_rest_takes_what_this_machine_took_so_far(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", "repeat", seconds=lambda key: 30.0)
    begun = [progress for progress in found if progress.stage == "starting"]
    assert begun[0].left is None
    assert [progress.left for progress in begun[1:]] == [
        30.0 * (progress.total - progress.number + 1) for progress in begun[1:]
    ]


def test_larger_models_are_expected_to_take_longer(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", "cpu", seconds=lambda key: 10.0)
    begun = [progress for progress in found if progress.stage == "starting"]
    assert [progress.trial.build.size for progress in begun] == ["tiny", "small"]
    assert begun[1].left is not None
    assert begun[1].left > 20


def test_a_line_for_each_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "time", SimpleNamespace(monotonic=lambda: 0.0))
    console = Console(file=io.StringIO(), width=200)
    lines = _Lines(console)
    for progress in watched(tmp_path / "run", "cpu", seconds=lambda key: 10.0):
        lines.show(progress)
    assert isinstance(console.file, io.StringIO)
    first, second = console.file.getvalue().splitlines()
    assert first == "1 of 2, cpu: d=32 (0.0 s so far)"
    assert second.startswith("2 of 2, cpu: d=64 (0.0 s so far, about ")
    assert second.endswith(" left)")
