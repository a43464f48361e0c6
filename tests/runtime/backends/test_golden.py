"""Whole models against what transformers and llama.cpp computed from the same files."""

import json
from pathlib import Path

import numpy as np
import pytest
from by_hand import equal_leading, greedy, run_tokens
from converting import build
from slow import slow_but

from anespec.manifests.schema import AttentionShape, Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier

MARGIN = 0.03
"""llama.cpp's own logits of these files differ from transformers' by up to this."""

ERRORS = {"gemma4": 0.06, "gemma4-ple": 0.08}
"""Larger where scores are not scaled down: they reach 30, and fp16 rounds each by up to 0.01."""

BACKENDS = ("torch", "openvino")
FAMILIES = sorted(path.stem for path in (Path(__file__).parents[2] / "data" / "families").glob("*.gguf"))
PROMPTS = ("Once upon a time", "One day, Tom", "Lily said")


@pytest.fixture(scope="module", params=slow_but(FAMILIES, "gemma3"))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=AttentionShape)
def artifact(
    request: pytest.FixtureRequest, family: str, families: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return build(
        families / f"{family}.gguf",
        tmp_path_factory.mktemp(family) / "m.anespec",
        target=Target.CPU,
        attention=request.param,
        weights=WeightChoice(WeightFormat.FP16),
        context=192,
    ).path


@pytest.mark.parametrize("backend", BACKENDS)
def test_families_equal_transformers(artifact: Path, family: str, families: Path, backend: str) -> None:
    answers = json.loads((families / f"{family}.json").read_text())
    verifier = open_verifier(artifact, backend, threads=1)
    tokens, logits = greedy(verifier, answers["prompt_ids"], len(answers["greedy"]))
    assert np.abs(logits[0] - np.array(answers["first_logits"])).max() < ERRORS.get(family, MARGIN)
    sure = next((i for i, margin in enumerate(answers["margins"]) if margin < MARGIN), len(tokens))
    assert sure >= 10, "the file's margins make this test say little"
    assert tokens[:sure] == answers["greedy"][:sure]
    whole = run_tokens(verifier, answers["prompt_ids"], width=verifier.shape.t_max)[-1]
    assert np.abs(whole - np.array(answers["first_logits"])).max() < ERRORS.get(family, MARGIN)
    verifier.close()


@pytest.mark.parametrize("backend", slow_but(BACKENDS, "openvino"))
@pytest.mark.parametrize("prompt", slow_but(PROMPTS, PROMPTS[0]))
def test_a_trained_model_writes_llama_cpp_s_text(
    stories_cpu: Path, shared_models: Path, prompt: str, backend: str
) -> None:
    answers = json.loads((shared_models / "stories260K.greedy.json").read_text())["llama.cpp_F16"][prompt]
    start = len(answers["prompt_ids"])
    expected = answers["greedy"][start:]
    verifier = open_verifier(stories_cpu, backend, threads=1)
    tokens, _ = greedy(verifier, answers["prompt_ids"], len(expected))
    assert equal_leading(tokens, expected) == len(expected)
    verifier.close()


@pytest.mark.parametrize("backend", slow_but(BACKENDS, "openvino"))
def test_both_attention_shapes_and_both_weights_agree(
    stories_cpu: Path, stories_mac: Path, stories_int8: Path, shared_models: Path, backend: str
) -> None:
    answers = json.loads((shared_models / "stories260K.greedy.json").read_text())["llama.cpp_F16"]
    text = answers["Once upon a time"]["greedy"][:100]
    reference, mac, int8 = (
        run_tokens(open_verifier(path, backend, threads=1), text).astype(np.float64)
        for path in (stories_cpu, stories_mac, stories_int8)
    )
    assert np.abs(mac - reference).max() < 0.1
    assert (mac.argmax(axis=1) == reference.argmax(axis=1)).mean() == 1
    cosines = (
        (int8 * reference).sum(axis=1) / np.linalg.norm(int8, axis=1) / np.linalg.norm(reference, axis=1)
    )
    assert cosines.min() > 0.995
    assert (int8.argmax(axis=1) == reference.argmax(axis=1)).mean() > 0.9
