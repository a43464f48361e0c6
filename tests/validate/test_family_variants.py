"""Other sizes and settings of every family: the reference against llama.cpp's logits."""

from pathlib import Path

import numpy as np
import pytest
from family_variants import CASES, CONTEXT, LOGITS, answers, llama_cpp_logits
from slow import slow_but

from anespec.convert.families import FAMILIES
from anespec.gguf.container import GGUFFile
from anespec.validate.golden.reference import Reference

EXACT = 2e-4
TABLE = 0.03
"""ggml looks GELU up in a table of fp16 numbers."""


def tolerance(name: str) -> float:
    return TABLE if name.startswith(("gemma", "starcoder2", "phi2", "falcon", "gpt2", "spark2_5")) else EXACT


def reference_logits(path: Path, ids: list[int]) -> np.ndarray:
    with GGUFFile(path) as file:
        reference = Reference(file, CONTEXT, resident_layers=1)
        layers = len(reference.facts.layers)
        hidden = reference.layers(0, layers, reference.embed(ids), range(len(ids)), reference.caches(), ids)
        return reference.logits(hidden[-1:])[0]


@pytest.mark.fast_only("mistral3 growing scores, no yarn", "glm4 sections")
@pytest.mark.parametrize("name", slow_but(CASES, *list(CASES)[::4]))
def test_the_reference_computes_what_llama_cpp_does(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = case.variant.write(tmp_path / "model.gguf")
    logits = reference_logits(path, case.prompt)
    np.testing.assert_allclose(logits[:LOGITS], answers()[name], atol=tolerance(name), rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_the_stored_answers_are_llama_cpp_s(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python (pip install llama-cpp-python)")
    case = CASES[name]
    path = case.variant.write(tmp_path / "model.gguf")
    logits = llama_cpp_logits(path, case.prompt)[-1]
    np.testing.assert_allclose(logits[:LOGITS], answers()[name], atol=2 * tolerance(name), rtol=0)


def test_every_family_has_a_variant() -> None:
    assert {case.variant.family for case in CASES.values()} == set(FAMILIES)
