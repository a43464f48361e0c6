"""Artifacts of other sizes and settings, cut in many ways, against llama.cpp's logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import run_tokens
from converting import build_once
from family_variants import CASES, CONTEXT, LOGITS, answers
from once import Once

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier

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
    "nemotron_h_moe of 5 experts": {"target": Target.CPU, "topology": (2, 3), "sequences": 2},
    "nemotron_h_moe with latent experts": {"target": Target.MAC, "block": 8},
}


PAIRS = [
    (name, backend)
    for number, name in enumerate(OPTIONS)
    for backend in ("openvino", "mlx" if number % 2 else "torch")
]
"""Every variant on OpenVINO, which changes the graph most, and on one of the others in turn."""


@pytest.mark.fast_only("llama all biases-torch")
@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_variants_equal_llama_cpp(name: str, backend: str, once: Once, tmp_path: Path) -> None:
    gguf = CASES[name].variant.write(tmp_path / "model.gguf")
    options = {"weights": WeightChoice(WeightFormat.FP16), "context": CONTEXT, **OPTIONS[name]}
    artifact = build_once(once, gguf, tmp_path / "m.anespec", **options)
    verifier = open_verifier(artifact, backend, threads=1)
    error = UNSCALED_ERROR if name.startswith("gemma4") else ERROR
    for width in {verifier.shape.block, verifier.shape.widths[-1]}:
        logits = run_tokens(verifier, CASES[name].prompt, width=width)[-1, :LOGITS]
        np.testing.assert_allclose(logits.astype(np.float32), answers()[name], atol=error, rtol=0)
    verifier.close()
