"""Hidden states beyond fp16's range, in a model without norms behind its branches."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from converting import build
from family_files import FAMILIES, louder
from planted import golden_of

from anespec.convert.families import FAMILIES as FAMILY_OF
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice

GROWTH = np.float16(8000)
"""Times the last matrix of every MLP: hidden states then reach 100,000, while no branch reaches 65,504."""


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid without norms behind its branches, whose sums pass 65,504 though no branch does."""
    folder = tmp_path_factory.mktemp("growing")
    return louder(FAMILIES / "qwen35.gguf", folder, "ffn_down.weight", GROWTH)


@pytest.mark.slow
def test_golden_names_the_factor_that_hidden_states_need(growing: Path, tmp_path: Path) -> None:
    options = {"context": 192, "weights": WeightChoice(WeightFormat.FP16), "target": Target.CPU}
    plain = Artifact(build(growing, tmp_path / "plain.anespec", **options).path)
    failure = golden_of(plain, growing, "torch").failures[0]
    assert failure.startswith("hidden states reach")
    needed = float(failure.split()[-1])
    scaled = Artifact(build(growing, tmp_path / "m.anespec", hidden_scale=needed, **options).path)
    assert scaled.manifest.hidden_scale == needed
    verdict = golden_of(scaled, growing, "torch")
    assert verdict.failures == ()
    assert verdict.hidden.largest > 65504


@pytest.mark.slow
def test_a_large_qwen35_has_a_factor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 27B is known to need one; here the tiny one counts as large."""
    large = dataclasses.replace(FAMILY_OF["qwen35"], large_hidden_scale=(64, 1 / 16))
    monkeypatch.setitem(FAMILY_OF, "qwen35", large)
    gguf_path = FAMILIES / "qwen35.gguf"
    options = {"context": 192, "weights": WeightChoice(WeightFormat.FP16), "target": Target.CPU}
    artifact = Artifact(build(gguf_path, tmp_path / "m.anespec", **options).path)
    assert artifact.manifest.hidden_scale == 1 / 16
    assert golden_of(artifact, gguf_path, "openvino").failures == ()
