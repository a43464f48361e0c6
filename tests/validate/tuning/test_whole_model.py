"""The winner and the defaults, converted whole: what was predicted of them beside what they took."""

import math
from pathlib import Path

import pytest
from simulated import SPACE, SimulatedEngine
from test_journal import HEADING

from anespec.manifests.schema import KVForm
from anespec.validate.tuning.report import WholeModel, measure_whole
from anespec.validate.tuning.run import Journal
from anespec.validate.tuning.search import Found, search
from anespec.validate.tuning.workbench import Workload

WORKLOAD = Workload()


def searched(engine: SimulatedEngine) -> tuple[Found, tuple[WholeModel, ...]]:
    found = search(SPACE, engine, WORKLOAD)
    return found, measure_whole(found, engine, WORKLOAD)


def test_an_engine_that_adds_up_is_as_predicted() -> None:
    found, (best, defaults) = searched(SimulatedEngine())
    assert (best.which, defaults.which) == ("best", "defaults")
    assert (best.candidate, defaults.candidate) == (found.best.candidate, SPACE.start)
    for model in (best, defaults):
        assert model.measured is not None
        # A shard of fewer layers than the largest is predicted with its share of the largest's dispatch.
        assert model.measured == pytest.approx(model.predicted, rel=0.02)
        assert [each.rows for each in model.passes] == list(model.candidate.widths)
    assert best.measured < defaults.measured


def test_a_whole_that_takes_more_than_its_parts_is_told_apart() -> None:
    _, (best, _) = searched(SimulatedEngine(whole_takes=2.0))
    assert best.measured is not None
    assert best.measured > 1.5 * best.predicted
    assert all(each.measured > 1.3 * each.predicted for each in best.passes)


def test_without_room_the_search_stands_and_says_why() -> None:
    found, models = searched(SimulatedEngine(room=False))
    assert not math.isinf(found.best.seconds)
    assert [model.why_not for model in models] == ["there is no room for it"] * 2
    assert all(model.measured is None and not model.passes for model in models)


def test_defaults_that_do_not_run_are_not_tried_whole() -> None:
    _, models = searched(SimulatedEngine(refused=frozenset({KVForm.SLICE_UPDATE})))
    assert [model.which for model in models] == ["best"]


def test_what_was_measured_whole_is_kept_and_is_no_candidate(tmp_path: Path) -> None:
    engine = SimulatedEngine()
    journal = Journal(tmp_path / "trials.jsonl", HEADING, engine)
    found = search(SPACE, journal, WORKLOAD)
    models = measure_whole(found, journal, WORKLOAD)
    again = Journal(tmp_path / "trials.jsonl", HEADING, SimulatedEngine(room=False))
    assert measure_whole(found, again, WORKLOAD) == models
    assert again.kept == len(found.trials)
