"""The reference against answers that other implementations computed (transformers, numpy, llama.cpp)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from anespec.manifests.errors import UnsupportedModelError
from anespec.manifests.gguf_file import GGUFFile
from anespec.validate.reference import Reference

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
STORIES = SHARED / "models" / "stories260K.F32.gguf"
FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
EMBEDDED = Path(__file__).resolve().parents[2] / "embedded" / "model.gguf"
MARGIN = 0.03
CONTEXT = 512

needs_shared = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/ beside the repository")


def greedy(reference: Reference, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """`count` greedy tokens after `prompt`, and the logits of its last row."""
    caches = reference.caches()
    layers = len(reference.facts.layers)
    hidden = reference.layers(0, layers, reference.embed(prompt), range(len(prompt)), caches, prompt)
    first = logits = reference.logits(hidden[-1:])[0]
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(int(logits.argmax()))
        position = len(prompt) + len(tokens) - 1
        hidden = reference.layers(0, layers, reference.embed(tokens[-1:]), [position], caches, tokens[-1:])
        logits = reference.logits(hidden)[0]
    return tokens, first


@needs_shared
@pytest.mark.parametrize("prompt", ["Once upon a time", "One day, Tom", "Lily said"])
def test_greedy_ids_of_a_trained_model(prompt: str) -> None:
    answers = json.loads((SHARED / "models" / "stories260K.greedy.json").read_text())["numpy_f32"][prompt]
    ids, prompt_ids = answers["greedy"], answers["prompt_ids"]
    with GGUFFile(STORIES) as file:
        tokens, _ = greedy(
            Reference(file, CONTEXT, resident_layers=5), prompt_ids, len(ids) - len(prompt_ids)
        )
    assert prompt_ids + tokens == ids


@pytest.mark.parametrize("family", sorted(path.stem for path in FAMILIES.glob("*.gguf")))
def test_families(family: str) -> None:
    answers = json.loads((FAMILIES / f"{family}.json").read_text())
    with GGUFFile(FAMILIES / f"{family}.gguf") as file:
        tokens, first = greedy(
            Reference(file, CONTEXT, resident_layers=4), answers["prompt_ids"], len(answers["greedy"])
        )
    np.testing.assert_allclose(first.numpy(), answers["first_logits"], atol=0.01)
    sure = next((i for i, m in enumerate(answers["margins"]) if m < MARGIN), len(tokens))
    assert sure > 0
    assert tokens[:sure] == answers["greedy"][:sure]


def hidden_at(file: GGUFFile, positions: list[int]) -> torch.Tensor:
    reference = Reference(file, CONTEXT)
    caches = reference.caches()
    return reference.layers(0, 2, reference.embed([5, 9, 12, 40]), positions, caches, [5, 9, 12, 40])


def test_linear_scaling_divides_positions() -> None:
    with GGUFFile(EMBEDDED) as file:
        plain = hidden_at(file, [0, 3, 4, 9])
        file.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
        torch.testing.assert_close(hidden_at(file, [0, 6, 8, 18]), plain, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(hidden_at(file, [0, 3, 4, 9]), plain, atol=1e-3)
        file.metadata["llama.rope.scaling.type"] = "none"
        torch.testing.assert_close(hidden_at(file, [0, 3, 4, 9]), plain)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [("rope.scaling.type", "dynamic", "'dynamic'"), ("expert_count", 8, "mixture of experts")],
)
def test_what_the_reference_lacks_is_refused_by_name(key: str, value: str | int, named: str) -> None:
    with GGUFFile(EMBEDDED) as file:
        file.metadata[f"llama.{key}"] = value
        with pytest.raises(UnsupportedModelError, match=named):
            Reference(file, CONTEXT)


def test_layer_ranges_and_head_slices_join_to_the_whole() -> None:
    with GGUFFile(EMBEDDED) as file:
        reference = Reference(file, CONTEXT)
        layers, ids = len(reference.facts.layers), [5, 9, 12]
        whole = reference.layers(0, layers, reference.embed(ids), range(3), reference.caches(), ids)
        caches = reference.caches()
        hidden = reference.layers(0, 2, reference.embed(ids), range(3), caches, ids)
        hidden = torch.cat(
            [reference.layers(2, layers, row[None], [p], caches, [ids[p]]) for p, row in enumerate(hidden)]
        )
        torch.testing.assert_close(hidden, whole, atol=1e-5, rtol=1e-5)
        parts = [reference.logits(hidden, 0, 100), reference.logits(hidden, 100)]
        torch.testing.assert_close(torch.cat(parts, dim=1), reference.logits(hidden), atol=1e-5, rtol=1e-5)
