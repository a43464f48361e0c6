"""Artifacts of other sizes and settings, cut in many ways, against llama.cpp's logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import run_tokens
from converting import build
from family_variants import CASES, CONTEXT, LOGITS, answers
from slow import slow_but

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier

BACKENDS = ("torch", "openvino")
ERROR = 0.06
UNSCALED_ERROR = 0.15
"""Gemma 4 does not scale its scores: they reach 30, and fp16 rounds each by up to 0.01."""

OPTIONS: dict[str, dict[str, Any]] = {
    "llama all biases": {"target": Target.MAC, "head_shards": 3},
    "qwen2 even yarn": {"target": Target.CPU, "topology": (1, 2)},
    "phi3 long factors": {"target": Target.CPU},
    "phi3 separate with biases": {"target": Target.MAC, "block": 1},
    "gemma3 scaled": {"target": Target.MAC, "topology": (1, 3, 3), "sequences": 2},
    "gemma3 pattern of 3": {"target": Target.CPU, "topology": (2, 5), "block": 8},
    "gemma4 mixed": {"target": Target.MAC, "topology": (1, 2, 2), "block": 2, "sequences": 2},
    "gemma4-ple shares": {"target": Target.CPU, "topology": (2, 5), "block": 8},
    "olmo3": {"target": Target.MAC, "topology": (4, 4), "block": 8},
    "exaone4 of 5 layers": {"target": Target.CPU, "block": 1},
    "mistral3 growing scores, no yarn": {"target": Target.MAC, "sequences": 2},
    "granite without rope": {"target": Target.CPU},
    "glm4 sections": {"target": Target.MAC},
}


@pytest.fixture(
    scope="module",
    params=slow_but(OPTIONS, "llama all biases", "granite without rope"),
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def artifact(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variant")
    gguf = CASES[name].variant.write(folder / "model.gguf")
    options = {"weights": WeightChoice(WeightFormat.FP16), "context": CONTEXT, **OPTIONS[name]}
    return build(gguf, folder / "m.anespec", **options).path


@pytest.mark.parametrize("backend", BACKENDS)
def test_variants_equal_llama_cpp(artifact: Path, name: str, backend: str) -> None:
    verifier = open_verifier(artifact, backend, threads=1)
    error = UNSCALED_ERROR if name.startswith("gemma4") else ERROR
    for width in {verifier.shape.block, verifier.shape.widths[-1]}:
        logits = run_tokens(verifier, CASES[name].prompt, width=width)[-1, :LOGITS]
        np.testing.assert_allclose(logits.astype(np.float32), answers()[name], atol=error, rtol=0)
    verifier.close()
