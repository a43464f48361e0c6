"""A file in gates/ may say anything; what comes of it is a page and a table, and never an error."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phi_like import (
    artifact_in,
    exactness_of,
    formats_of,
    golden_of,
    phi_manifest,
    quality_of,
    residency_of,
    sample_of,
)
from slow import slow_but

from anespec.manifests.residency import ResidencyFile
from anespec.manifests.verdicts import ExactnessFile
from anespec.models.verdict_summary import recorded_verdicts
from anespec.validate.golden.figures import GoldenFile
from anespec.validate.other_formats import FormatsFile
from anespec.validate.page.write import render_page
from anespec.validate.quality.verdict import QualityFile
from anespec.validate.sample.figures import OtherChoice, ReferenceReading, SampleFile

KINDS = {
    ResidencyFile: residency_of, GoldenFile: golden_of, ExactnessFile: exactness_of,
    QualityFile: quality_of, SampleFile: sample_of, FormatsFile: formats_of,
}  # fmt: skip
NUMBERS = (10**20, 1e308)
TIMES = ("2020-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")


def edited(value: Any) -> Iterator[Any]:
    """Copies of a JSON value with one extreme leaf or nothing in one list or object; of lists the first."""
    match value:
        case {**items} if items:
            for key, item in items.items():
                yield from (items | {key: other} for other in edited(item))
            yield {}
        case [first, *rest]:
            yield from ([other, *rest] for other in edited(first))
            yield []
        case str():
            yield from TIMES if value[:2] == "20" else ("",)
        case int() | float():
            yield from NUMBERS


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(KINDS, ExactnessFile), ids=lambda kind: kind.gate)
def test_no_verdict_is_too_extreme_to_be_shown_or_left_out(tmp_path: Path, kind: Any) -> None:
    artifact = artifact_in(tmp_path / "m", phi_manifest())
    earlier = KINDS[kind](artifact)
    artifact.record_verdict(kind, earlier)
    (verdict,) = json.loads((artifact.gates / f"{kind.gate}.json").read_text())["verdicts"]
    sound = verdict | {"measured_at": "2026-01-01T00:00:00Z"}
    shown = 0
    for other in edited(verdict):
        text = json.dumps({"schema_version": 1, "verdicts": [other, sound]})
        (artifact.gates / f"{kind.gate}.json").write_text(text)
        if artifact.read_verdicts(kind).verdicts:
            render_page(artifact)
            recorded_verdicts(artifact)
            shown += 1
    assert shown


def test_a_sample_whose_reference_parts_after_its_end_is_left_out(tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path / "m", phi_manifest())
    sample = sample_of(artifact)
    late = OtherChoice(index=10**6, text="a", probability=0.5, chosen_probability=0.1)
    reading = ReferenceReading(others=(late,), own=None)
    passage = sample.passages[0].model_copy(update={"reference": reading})
    artifact.record_verdict(SampleFile, sample.model_copy(update={"passages": (passage,)}))
    assert render_page(artifact)
    assert not artifact.read_verdicts(SampleFile).verdicts
