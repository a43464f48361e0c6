"""The tuners have one table of choices and one ranking."""

import math
from dataclasses import fields

import pytest

from anespec.manifests.schema import KVForm, Shapes, WeightFormat
from anespec.manifests.tuned import CHOICES
from anespec.validate.tuning.candidates import KNOWN, SEARCHED, Space
from anespec.validate.tuning.ranking import FASTER, LONG_START, MUCH_FASTER, Cost, best_of
from anespec.validate.tuning.search import STAGES


def test_every_choice_that_is_searched_has_values_a_stage_and_an_option() -> None:
    assert {field.name for field in fields(Space)} == set(SEARCHED)
    assert {name for stage in STAGES for name in stage} == set(SEARCHED)
    assert set(SEARCHED) == set(CHOICES) - {"topology"}


def test_the_table_has_every_way_to_write_a_graph() -> None:
    assert set(KNOWN.kv_form) == set(KVForm)
    assert set(KNOWN.shapes) == set(Shapes)
    assert set(KNOWN.weights) <= set(WeightFormat)
    for name in SEARCHED:
        values = getattr(KNOWN, name)
        assert len(set(values)) == len(values), name


@pytest.mark.parametrize(
    ("new", "best", "replaces"),
    [
        (Cost(0.98), Cost(1.0), True),
        (Cost(0.995), Cost(1.0), False),
        (Cost(0.95, LONG_START), Cost(1.0), False),
        (Cost(0.89, LONG_START), Cost(1.0), True),
        (Cost(1.1), Cost(1.0, LONG_START), True),
        (Cost(1.2), Cost(1.0, LONG_START), False),
        (Cost(0.98, LONG_START), Cost(1.0, LONG_START), True),
        (Cost(math.inf), Cost(math.inf, LONG_START), False),
        (Cost(1.0), Cost(math.inf), True),
        (Cost(math.inf), Cost(1.0), False),
    ],
)
def test_a_candidate_replaces_what_is_slower(new: Cost, best: Cost, replaces: bool) -> None:
    assert new.replaces(best, FASTER) is replaces


def test_of_candidates_about_as_fast_the_first_stays() -> None:
    times = {"first": 10.0, "about as fast": 9.5, "much faster": 8.5, "the fastest": 8.0}
    assert best_of(times, lambda name: Cost(times[name]), MUCH_FASTER) == "much faster"
    assert best_of(["first"], lambda _: Cost(math.inf), FASTER) == "first"
    with pytest.raises(ValueError, match="no candidate"):
        best_of([], lambda _: Cost(1.0), FASTER)
