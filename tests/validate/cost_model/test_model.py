"""The cost model against what others measured: every part counts, and no chip is guessed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from anespec.manifests.store import Artifact
from anespec.system.grades import Grade
from anespec.validate.cost_model.constants import CHIPS, PALETTE_SHARE, SHARED
from anespec.validate.cost_model.forecast import (
    BANDWIDTH_RATIO,
    chip_named,
    chips_alike,
    compare,
    forecast_facts,
    predict,
)
from anespec.validate.cost_model.work import PassWork

PHI_4_MINI = PassWork(
    rows=4,
    weight_bytes=3_837_991_680,
    palette_bytes=0,
    kv_moved=9 * 268_435_456,
    kv_written=268_435_456,
    operations=4074,
    dispatches=5,
)
"""As it is built for a Mac by default: int8, 2048 slots, blended."""

M4_MAX = chip_named("Darwin arm64 Apple M4 Max")


def test_the_one_published_time_of_this_very_graph_is_met() -> None:
    """ane-book: 58 ms for four rows, 16.7 to 17.8 tokens/s plain. An operation is fitted to it."""
    assert M4_MAX is not None
    time = predict(PHI_4_MINI, M4_MAX)
    assert time.milliseconds == pytest.approx(58, rel=0.02)
    assert 16.7 < time.tokens_per_second() < 17.8
    assert time.tokens_per_second(1.62) == pytest.approx(28.9, rel=0.05)


@pytest.mark.parametrize("field", ["weight_bytes", "palette_bytes", "kv_moved", "operations", "dispatches"])
def test_more_of_anything_takes_longer(field: str) -> None:
    assert M4_MAX is not None
    more = replace(PHI_4_MINI, **{field: getattr(PHI_4_MINI, field) * 2 + 10**6})
    assert predict(more, M4_MAX).milliseconds > predict(PHI_4_MINI, M4_MAX).milliseconds


def test_palettes_reach_their_share_of_the_bandwidth() -> None:
    assert M4_MAX is not None
    stored = replace(PHI_4_MINI, palette_bytes=PHI_4_MINI.weight_bytes)
    plain, palettes = predict(PHI_4_MINI, M4_MAX).weights, predict(stored, M4_MAX).weights
    assert palettes * PALETTE_SHARE.value == pytest.approx(plain)


@pytest.mark.parametrize(
    ("machine", "chip"),
    [
        ("Darwin arm64 Apple M4 Max", "Apple M4 Max"),
        ("Darwin arm64 Apple M4", "Apple M4"),
        ("Darwin arm64 Apple M3 Pro", None),
        ("Linux x86_64 AMD EPYC", None),
        ("Darwin arm64 Apple M4 (Virtual)", None),
    ],
)
def test_a_chip_is_known_by_its_whole_name(machine: str, chip: str | None) -> None:
    found = chip_named(machine)
    assert (found and found.name) == chip


def test_a_measured_pass_is_compared_with_its_prediction(stories_mac: Path, stories_cpu: Path) -> None:
    artifact, machine = Artifact(stories_mac), "Darwin arm64 Apple M4 Max"
    assert M4_MAX is not None
    predicted = predict(PassWork.of_artifact(artifact), M4_MAX).milliseconds
    compared = compare(artifact, machine, 3 * predicted)
    assert compared is not None
    assert compared.facts()["ratio"] == 3
    assert "3.00 times" in str(compared)
    assert compare(artifact, "Linux x86_64 AMD EPYC", 1.0) is None
    assert compare(Artifact(stories_cpu), machine, 1.0) is None, "the model is of the Neural Engine's passes"


def test_chips_are_grouped_by_bandwidth() -> None:
    groups = list(chips_alike())
    assert sorted(chip.name for group in groups for chip in group) == sorted(chip.name for chip in CHIPS)
    slowest = [group[0].bandwidth.value for group in groups]
    assert slowest == sorted(slowest)
    for group in groups:
        assert group[-1].bandwidth.value <= group[0].bandwidth.value * BANDWIDTH_RATIO


def test_every_constant_has_a_grade_and_a_source() -> None:
    constants = [*SHARED.values(), *(chip.bandwidth for chip in CHIPS)]
    for constant in constants:
        assert constant.value > 0
        assert constant.grade in (Grade.A, Grade.B, Grade.C), "none was measured by this project"
        assert constant.source
    assert len({chip.name for chip in CHIPS}) == len(CHIPS)


def test_the_facts_say_that_they_are_predicted_and_by_what() -> None:
    facts = forecast_facts(PHI_4_MINI)
    assert facts["basis"].startswith("predicted and not measured")
    assert all(re.search(r"\((A|B|C): .+\)$", text) for text in facts["constants"].values())
    for chips in facts["chips"]:
        parts = sum(chips[f"{part}_ms"] for part in ("weights", "kv", "operations", "dispatches"))
        assert chips["pass_ms"] == pytest.approx(parts, abs=0.01)
