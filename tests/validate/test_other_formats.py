"""Estimates of other weight formats, held against conversions to them."""

from pathlib import Path

import pytest
from planted import STORIES, convert_to, needs_stories
from slow import slow_but

from anespec.manifests.schema import WeightFormat, relative_error
from anespec.manifests.store import Artifact
from anespec.validate import other_formats
from anespec.validate.other_formats import FormatsFile, estimate_formats, formats_circumstances

pytestmark = needs_stories


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return convert_to(tmp_path_factory.mktemp("fp16"), STORIES, WeightFormat.FP16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", slow_but([WeightFormat.INT8_BLOCK32, WeightFormat.LUT4], WeightFormat.LUT4)
)
def test_an_estimate_is_what_a_conversion_gives(
    artifact: Artifact, weights: WeightFormat, tmp_path: Path
) -> None:
    estimates = estimate_formats(artifact, STORIES)
    estimate = next(e for e in estimates.estimates if e.weights is weights)
    real = convert_to(tmp_path, STORIES, weights).manifest
    assert estimates.sampled == estimates.total
    assert estimate.fallbacks == sum(tensor.fallback is not None for tensor in real.tensors)
    headers = sum(shard.bytes for shard in artifact.manifest.shards)
    headers -= sum(tensor.bytes for tensor in artifact.manifest.tensors)
    assert estimate.bytes - headers == sum(tensor.bytes for tensor in real.tensors)
    # Rows are not permuted for an estimate, so palettes are of other groups of rows.
    assert estimate.relative_error == pytest.approx(relative_error(real.tensors), rel=0.03)


@pytest.mark.slow
def test_a_large_model_is_sampled(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = estimate_formats(artifact, STORIES)
    monkeypatch.setattr(other_formats, "MAX_WEIGHTS", 60_000)
    some = estimate_formats(artifact, STORIES)
    assert 20_000 < some.sampled <= 60_000 < some.total == whole.total
    for sampled, exact in zip(some.estimates, whole.estimates, strict=True):
        assert sampled.bytes == exact.bytes
        assert sampled.relative_error == pytest.approx(exact.relative_error, rel=0.2, abs=1e-3)
    assert artifact.read_verdicts(FormatsFile).find(formats_circumstances(artifact)) == some
