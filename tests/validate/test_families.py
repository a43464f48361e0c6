"""Every family in some weight formats and K/V forms, and all of those: the gates hold on all backends.

The whole matrix takes minutes; here each family meets two formats and two forms in turn, one on torch and one
on OpenVINO, so that seven families in a row meet all formats, and three all forms. Every three families a
form moves on to another backend and target.
"""

import json
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from by_hand import run_tokens
from converting import build
from elsewhere import same
from planted import golden_of

from anespec.convert.weights.targets import fits
from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Invariance
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import OPENVINO, TORCH_FLUSH, circumstances, open_verifier
from anespec.validate.exactness.gate import exactness_gate

FAMILIES = sorted((Path(__file__).resolve().parents[1] / "data" / "families").glob("*.gguf"))
FORMATS = list(WeightFormat)
PAIRS = [
    (path, weight_format)
    for number, path in enumerate(FAMILIES)
    for weight_format in (FORMATS[number % len(FORMATS)], FORMATS[(number + 3) % len(FORMATS)])
]

FORMS = [form for first in range(len(KVForm)) for form in (*list(KVForm)[first:], *list(KVForm)[:first])]

BACKENDS = ("torch", OPENVINO, OPENVINO, TORCH_FLUSH)
"""The two of a family, then those of the next."""

LARGEST_DIVERGENCE = {
    WeightFormat.FP16: 0.002,
    WeightFormat.INT8_BLOCK32: 0.03,
    WeightFormat.LUT8: 0.03,
    WeightFormat.INT8_CHANNEL: 0.03,
    WeightFormat.LUT6: 0.2,
    WeightFormat.INT4_BLOCK32: 1.0,
    WeightFormat.LUT4: 2.0,
}
"""Nats between transformers' and the artifact's next token. Random models of 4 layers keep little of their
distribution in 4 bits; trained ones keep far more."""


def divergence(expected: np.ndarray, found: np.ndarray) -> float:
    """KL(expected || found) of two rows of logits."""
    wanted, got = (row - np.logaddexp.reduce(row.astype(np.float64)) for row in (expected, found))
    return float((np.exp(wanted) * (wanted - got)).sum())


@pytest.mark.parametrize(
    ("gguf", "weights", "target", "form", "backend"),
    [
        pytest.param(
            *(gguf, weights, target if fits(weights, target) else Target.CPU, form, backend),
            marks=() if gguf.stem == "llama" and backend == OPENVINO else pytest.mark.slow,
        )
        for (gguf, weights), target, form, backend in zip(
            PAIRS, cycle((Target.MAC, Target.CPU)), cycle(FORMS), cycle(BACKENDS), strict=False
        )
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_every_family_passes_the_gates(
    gguf: Path, weights: WeightFormat, target: Target, form: KVForm, backend: str, tmp_path: Path
) -> None:
    options = {"context": 192, "sequences": 2, "target": target, "weights": WeightChoice(weights)}
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", kv_form=form, **options).path)
    answers = json.loads(gguf.with_suffix(".json").read_text())
    verifier = open_verifier(artifact, backend, threads=1)
    logits = run_tokens(verifier, answers["prompt_ids"])[-1]
    assert divergence(np.array(answers["first_logits"]), logits) < LARGEST_DIVERGENCE[weights]
    prompts, here = [answers["prompt_ids"]], circumstances(artifact, backend, 1)
    verdict = exactness_gate(verifier, here, form="quick", prompts=prompts, elsewhere=same(verifier, prompts))
    verifier.close()
    assert verdict.allows_speculation, (backend, verdict.invariances)
    assert all(v.cases for v in verdict.invariances if v.invariance is not Invariance.SPAN)
    golden = golden_of(artifact, gguf, backend, greedy_tokens=2)
    assert golden.passed, (backend, golden.failures)
