"""Hidden states beyond fp16 range: families that grow them keep them smaller, and nothing else changes."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from by_hand import run_tokens
from converting import build
from family_files import FAMILIES, louder

from anespec.convert import families as architectures
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.system.errors import RequestError
from anespec.validate.golden.reference import Reference

TOKENS = list(range(40, 60))
LOUDER = np.float32(40_000)
"""Times the norm after every MLP of the tiny model: its hidden states then pass 65,504."""


@pytest.fixture(scope="module")
def loud(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loud")
    return louder(families / "gemma3.gguf", folder, "post_ffw_norm.weight", LOUDER)


def logits(gguf_path: Path, folder: Path) -> np.ndarray:
    options = {"context": 64, "weights": WeightChoice(WeightFormat.FP16)}
    verifier = open_verifier(build(gguf_path, folder / "m.anespec", **options).path, "torch", threads=1)
    found = run_tokens(verifier, TOKENS)
    verifier.close()
    return found.astype(np.float32)


@pytest.mark.slow
def test_large_hidden_states_stay_finite_and_right(loud: Path, tmp_path: Path) -> None:
    with GGUFFile(loud) as file:
        reference = Reference(file, context=64, resident_layers=8)
        layers, places = len(reference.facts.layers), range(len(TOKENS))
        hidden = reference.layers(0, layers, reference.embed(TOKENS), places, reference.caches(), TOKENS)
        expected = reference.logits(hidden)
    assert float(np.abs(hidden).max()) > float(np.finfo(np.float16).max), (
        "the model is not loud enough to tell"
    )
    found = logits(loud, tmp_path)
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() < 0.1


@pytest.mark.slow
def test_without_the_scale_they_would_overflow(
    loud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = dataclasses.replace(architectures.FAMILIES["gemma3"], hidden_scale=1.0)
    monkeypatch.setitem(architectures.FAMILIES, "gemma3", plain)
    assert not np.isfinite(logits(loud, tmp_path)).all()


@pytest.mark.parametrize("scale", [0.3, 1.5, 0.0])
def test_a_factor_must_be_a_power_of_two(families: Path, tmp_path: Path, scale: float) -> None:
    with pytest.raises(RequestError, match=r"hidden.scale"):
        build(families / "qwen3.gguf", tmp_path / "m.anespec", hidden_scale=scale)


def test_learned_positions_cannot_have_a_factor(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not for models with learned positions"):
        build(FAMILIES / "gpt2.gguf", tmp_path / "m.anespec", hidden_scale=0.5)
