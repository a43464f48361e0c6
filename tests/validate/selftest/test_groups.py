"""More weights than one process may hold are loaded in several, which hand the same bits on."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from stand_in import SCALE, StandInDevice, planted, run_steps, said

from anespec.validate.selftest import groups
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.device import Units
from anespec.validate.selftest.groups import GroupElsewhere, GroupFailedError, GroupHere, open_groups
from anespec.validate.selftest.inputs.stimulus import passes
from anespec.validate.selftest.recommend import advise_loading
from anespec.validate.selftest.records import Build, Measured, Outcome, failure_of

HERE = Path(__file__).parent
BUILD = Build(size="full", context=128, topology=(2, 2))


@pytest.fixture(autouse=True)
def beside_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes make the stand-in's device, too."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("FAULTS", planted())


@pytest.mark.slow
def test_groups_in_processes_give_what_one_group_gives(folder: Path) -> None:
    stages: list[str] = []
    bench = Bench(StandInDevice(), SCALE, folder, stages.append)
    manifest = bench.artifact(BUILD).manifest
    for shard in manifest.shards:
        bench.compiled(BUILD, shard)
    steps = list(passes(manifest, BUILD.block, 3))
    with open_groups(bench, BUILD, (range(3),), Units.DEVICE) as (whole,):
        whole.loaded()
        expected = [whole.run(step) for step in steps]
    with open_groups(bench, BUILD, (range(1), range(1, 3)), Units.DEVICE) as (first, second):
        assert first.loaded().memory_bytes > 0
        assert second.loaded().seconds > 0
        for step, (hidden, passed) in zip(steps, expected, strict=True):
            between, one = first.run(step)
            after, two = second.run(type(step)(step.rows, between))
            assert np.array_equal(after.view(np.uint16), hidden.view(np.uint16))
            assert one.finite and two.finite
            # The stand-in's times are made up.
            assert one.seconds + two.seconds == pytest.approx(passed.seconds)
        assert isinstance(second, GroupElsewhere)
        os.kill(second.process.pid, signal.SIGKILL)
        with pytest.raises(GroupFailedError, match="Killed: 9"):
            second.run(steps[0])
    assert {stage[:14] for stage in stages} >= {"process 1 of 2", "process 2 of 2"}


@pytest.mark.slow
def test_what_core_ml_says_in_a_process_is_what_the_trial_fails_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTS", planted(refused=("2+2",)))
    bench = Bench(StandInDevice(), SCALE, folder, lambda _: None)
    for shard in bench.artifact(BUILD).manifest.shards:
        bench.compiled(BUILD, shard)
    with (
        open_groups(bench, BUILD, (range(1), range(1, 1)), Units.DEVICE) as (first, _),
        pytest.raises(GroupFailedError, match=r"error code: -14") as caught,
    ):
        first.loaded()
    assert failure_of(caught.value, "loading").code == "-14"


def test_the_step_says_how_shards_were_shared_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def here(bench: Bench, build: Build, share: range, units: Units, place: str) -> Iterator[GroupHere]:
        yield GroupHere(bench, build, share, units)

    monkeypatch.setattr(groups, "_elsewhere", here)
    scale = SCALE.model_copy(update={"worker_budget": 1})
    (record,) = run_steps(folder, "topology", names=("2+2 layers",), scale=scale)
    assert record.outcome is Outcome.DONE
    assert len(record.measured.processes) == 3
    assert sum(record.measured.processes) == record.measured.weight_bytes
    assert record.measured.load_seconds is not None
    assert "in 3 processes (" in said([record], "topology")["2+2 layers"][0]
    predicted = record.measured.predicted_ms
    assert predicted is not None
    ratio = record.measured.times[0].median_ms / predicted
    text = f"{ratio:.2f} times the {predicted:.1f} ms predicted"
    assert text in said([record], "topology")["2+2 layers"][0]


@pytest.mark.slow
def test_the_step_says_whether_workers_should_load_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("loading together", "loading in-turn")
    records = run_steps(folder, "topology", names=names)
    assert [record.outcome for record in records] == [Outcome.NOT_HERE] * 2
    facts = StandInDevice().facts()
    assert advise_loading(records, facts) is None
    scale = SCALE.model_copy(update={"worker_budget": 1})
    records = run_steps(folder, "topology", names=names, scale=scale)
    assert [record.outcome for record in records] == [Outcome.DONE] * 2

    def advised(together: float, in_turn: float, memory: int) -> str:
        timed = [
            record.model_copy(update={"measured": Measured(load_seconds=seconds)})
            for record, seconds in zip(records, (together, in_turn), strict=True)
        ]
        advice = advise_loading(timed, facts.model_copy(update={"memory_bytes": memory}))
        assert advice is not None
        return advice.loading

    assert advised(97, 71, 32 << 30) == "in-turn"
    assert advised(60, 61, 8 << 30) == "in-turn"
    assert advised(30, 60, 8 << 30) == "together"
