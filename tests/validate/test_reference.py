"""The reference against answers of other implementations: transformers, numpy, llama.cpp, torch."""

import json
from pathlib import Path

import numpy as np
import pytest
from close_calls import equal_while_sure

from anespec.gguf.container import GGUFFile
from anespec.system.errors import UnsupportedModelError
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.rounding import Floats

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
STORIES = SHARED / "models" / "stories260K.F32.gguf"
FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
EMBEDDED = Path(__file__).resolve().parents[2] / "embedded" / "model.gguf"
FORMER = Path(__file__).resolve().parents[1] / "data" / "torch_reference.npz"
"""Logits of rows 0, 20 and 43 of one text and row 8 of another, [4, vocabulary], by the name of the file:
what the reference computed as long as it ran on torch (2.13.0, up to commit 6b2c96d)."""
ROUNDING = 1e-5
"""Of the largest value: fp32 sums in another order."""
SAME_FLOATS = 1e-3
"""Logits of two fp32 implementations of the same formulas are nearer than this."""
CONTEXT = 512

needs_shared = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/ beside the repository")


def greedy(reference: Reference, prompt: list[int], count: int) -> tuple[list[int], Floats]:
    """`count` greedy tokens after `prompt`, and the logits that each was chosen from."""
    caches = reference.caches()
    layers = len(reference.facts.layers)
    hidden = reference.layers(0, layers, reference.embed(prompt), range(len(prompt)), caches, prompt)
    logits = [reference.logits(hidden[-1:])[0]]
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        position = len(prompt) + len(tokens) - 1
        first_hidden = reference.embed(tokens[-1:], [position])
        hidden = reference.layers(0, layers, first_hidden, [position], caches, tokens[-1:])
        logits.append(reference.logits(hidden)[0])
        tokens.append(int(logits[-1].argmax()))
    return tokens, np.stack(logits)


@needs_shared
@pytest.mark.parametrize("prompt", ["Once upon a time", "One day, Tom", "Lily said"])
def test_greedy_ids_of_a_trained_model(prompt: str) -> None:
    answers = json.loads((SHARED / "models" / "stories260K.greedy.json").read_text())["numpy_f32"][prompt]
    ids, prompt_ids = answers["greedy"], answers["prompt_ids"]
    with GGUFFile(STORIES) as file:
        found = greedy(Reference(file, CONTEXT, resident_layers=5), prompt_ids, len(ids) - len(prompt_ids))
    assert equal_while_sure(*found, ids[len(prompt_ids) :], close=SAME_FLOATS) > 100


@pytest.mark.parametrize("family", sorted(path.stem for path in FAMILIES.glob("*.gguf")))
def test_families(family: str) -> None:
    answers = json.loads((FAMILIES / f"{family}.json").read_text())
    with GGUFFile(FAMILIES / f"{family}.gguf") as file:
        tokens, logits = greedy(
            Reference(file, CONTEXT, resident_layers=4), answers["prompt_ids"], len(answers["greedy"])
        )
    np.testing.assert_allclose(logits[0], answers["first_logits"], atol=0.01)
    assert equal_while_sure(tokens, logits, answers["greedy"], answers["margins"]) > 0


@pytest.mark.parametrize("name", np.load(FORMER).files)
def test_the_logits_are_those_of_the_former_reference(name: str) -> None:
    expected = np.load(FORMER)[name]
    with GGUFFile(EMBEDDED if name == "embedded" else FAMILIES / f"{name}.gguf") as file:
        reference = Reference(file, CONTEXT, resident_layers=8)
        vocabulary = reference.facts.vocabulary
        texts = [
            [(7 * i * i + 3 * i + seed) % vocabulary for i in range(count)]
            for count, seed in ((44, 5), (9, 1))
        ]
        first, second = reference.hidden_states(texts)
        logits = reference.logits(np.stack((*first[[0, 20, 43]], second[8])))
    assert first.dtype == logits.dtype == np.float32
    assert logits.shape == expected.shape == (4, vocabulary)
    assert np.abs(logits - expected).max() < ROUNDING * np.abs(expected).max()


def hidden_at(file: GGUFFile, positions: list[int]) -> Floats:
    reference = Reference(file, CONTEXT)
    caches, ids = reference.caches(), [5, 9, 12, 40]
    return reference.layers(0, 2, reference.embed(ids, positions), positions, caches, ids)


def test_linear_scaling_divides_positions() -> None:
    with GGUFFile(EMBEDDED) as file:
        plain = hidden_at(file, [0, 3, 4, 9])
        file.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
        np.testing.assert_allclose(hidden_at(file, [0, 6, 8, 18]), plain, atol=1e-5, rtol=1e-5)
        assert not np.allclose(hidden_at(file, [0, 3, 4, 9]), plain, atol=1e-3)
        file.metadata["llama.rope.scaling.type"] = "none"
        np.testing.assert_allclose(hidden_at(file, [0, 3, 4, 9]), plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [("rope.scaling.type", "dynamic", "'dynamic'"), ("attention.value_length", 4, "V heads of 4")],
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
        hidden = np.concatenate(
            [reference.layers(2, layers, row[None], [p], caches, [ids[p]]) for p, row in enumerate(hidden)]
        )
        np.testing.assert_allclose(hidden, whole, atol=1e-5, rtol=1e-5)
        parts = [reference.logits(hidden, 0, 100), reference.logits(hidden, 100)]
        np.testing.assert_allclose(
            np.concatenate(parts, axis=1), reference.logits(hidden), atol=1e-5, rtol=1e-5
        )
