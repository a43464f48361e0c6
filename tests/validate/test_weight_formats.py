"""Every weight format end to end on a trained model: how far its weights and logits are off.

That each may speculate stands in test_law.py, that each computes what it stores in test_golden.py.
"""

from pathlib import Path

import numpy as np
import pytest
from by_hand import run_tokens
from planted import PROMPTS, STORIES, convert_to, needs_stories
from slow import slow_but

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import WeightFormat, relative_error
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.validate.golden.reference import Reference

ADDED = {
    WeightFormat.FP16: (0.0, 0.01),
    WeightFormat.INT8_BLOCK32: (0.006, 0.1),
    WeightFormat.LUT8: (0.006, 0.1),
    WeightFormat.INT8_CHANNEL: (0.007, 0.1),
    WeightFormat.LUT6: (0.03, 0.3),
    WeightFormat.INT4_BLOCK32: (0.09, 0.8),
    WeightFormat.LUT4: (0.11, 1.0),
}
"""Limits on the error of all weights, and on that of logits less their mean, both relative."""


@pytest.mark.fast_only("fp16-torch")
@needs_stories
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "torch", "openvino"))
@pytest.mark.parametrize("weights", WeightFormat)
def test_a_format_is_near_the_source(
    stories: dict[WeightFormat, Artifact], backend: str, weights: WeightFormat
) -> None:
    artifact, prompt = stories[weights], PROMPTS[1]
    weight_limit, logit_limit = ADDED[weights]
    assert relative_error(artifact.manifest.tensors) <= weight_limit
    with GGUFFile(STORIES) as file:
        reference = Reference(file, artifact.manifest.context, resident_layers=8)
        layers, places = len(reference.facts.layers), range(len(prompt))
        hidden = reference.layers(0, layers, reference.embed(prompt), places, reference.caches(), prompt)
        expected = reference.logits(hidden)
    verifier = open_verifier(artifact, backend, 1)
    found = run_tokens(verifier, prompt).astype(np.float32)
    verifier.close()
    centred = expected - expected.mean(axis=1, keepdims=True)
    off = found - found.mean(axis=1, keepdims=True) - centred
    assert np.linalg.norm(off) / np.linalg.norm(centred) < logit_limit


@pytest.mark.slow
@needs_stories
def test_a_quantised_source_is_carried_through_a_whole_conversion(tmp_path: Path) -> None:
    """Every tensor of whole blocks is without loss, also those whose rows are reordered for the rope."""
    for kind, weights in (("Q8_0", WeightFormat.INT8_BLOCK32), ("Q4_0", WeightFormat.INT4_BLOCK32)):
        gguf = STORIES.with_name(f"stories260K.{kind}.gguf")
        artifact = convert_to(tmp_path / kind, gguf, weights)
        repacked = [t for t in artifact.manifest.tensors if t.source_type == kind]
        assert len(repacked) > 20
        assert all(t.lossless and t.squared_error == 0 for t in repacked)
        assert any(t.rope_permuted for t in repacked)
        assert all(t.fallback for t in artifact.manifest.tensors if t.columns % 32)
