"""Every family in a weight format and a K/V form, and all of those: the gates hold on all backends.

The whole matrix takes an hour; here each family meets one format, form and backend in turn, so that seven
families in a row meet all formats, and six all forms. Every six families a form moves on to another backend
and target. Recurrent layers have four of the forms, the others refuse them.
"""

import json
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from both_gates import quick_exactness
from by_hand import finds_a_difference, run_tokens
from converting import build
from planted import golden_of

from anespec.convert.weights.targets import fits
from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Invariance
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import OPENVINO, TORCH_FLUSH, open_verifier

LATER = ("deepseek2", "glm4moelite", "nemotron_h_moe")
"""Files that came later stand behind the others, which keep their formats, forms and backends: each new one
among them would have every family after it meet another."""

FAMILIES = sorted(
    (Path(__file__).resolve().parents[1] / "data" / "families").glob("*.gguf"),
    key=lambda path: (path.stem in LATER, path.name),
)
FORMATS = list(WeightFormat)
PAIRS = [(path, FORMATS[number % len(FORMATS)]) for number, path in enumerate(FAMILIES)]

RECURRENT = ("falcon_h1", "granitehybrid", "mamba2", "nemotron_h", "qwen35", "qwen3next")
"""The beginnings of the names of families with recurrent layers."""

WITHOUT_MASKS = {KVForm.OUTSIDE: KVForm.REREAD, KVForm.AT_POSITION: KVForm.PACKED}
"""The forms that recurrent layers have not, and others in their place."""

FORMS = [form for first in range(len(KVForm)) for form in (*list(KVForm)[first:], *list(KVForm)[:first])]

BACKENDS = ("torch", OPENVINO, OPENVINO, TORCH_FLUSH)
"""Those of one family after the other."""


def form_of(gguf: Path, form: KVForm) -> KVForm:
    """A form that the family has."""
    return WITHOUT_MASKS.get(form, form) if gguf.stem.startswith(RECURRENT) else form


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

MIXTURE_DIVERGENCE = 0.05
"""The same where rounding to fp16 may exchange two experts of a row whose scores are almost equal."""


def divergence(expected: np.ndarray, found: np.ndarray) -> float:
    """KL(expected || found) of two rows of logits."""
    wanted, got = (row - np.logaddexp.reduce(row.astype(np.float64)) for row in (expected, found))
    return float((np.exp(wanted) * (wanted - got)).sum())


@pytest.mark.parametrize(
    ("gguf", "weights", "target", "form", "backend"),
    [
        pytest.param(
            *(gguf, weights, target if fits(weights, target) else Target.CPU, form_of(gguf, form), backend),
            marks=() if gguf.stem == "llama" else pytest.mark.slow,
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
    is_mixture = any(
        tensor.projection.endswith("_router") for tensor in artifact.manifest.layer_shards[-1].tensors
    )
    least = MIXTURE_DIVERGENCE if is_mixture else 0.0
    assert divergence(np.array(answers["first_logits"]), logits) < max(least, LARGEST_DIVERGENCE[weights])
    verdict = quick_exactness(verifier, artifact, backend, [answers["prompt_ids"]])
    # Some processors add up a row's products by its lane; then the gate has to say so.
    allowed = verdict.allows_speculation or finds_a_difference(verifier, answers["prompt_ids"])
    verifier.close()
    assert allowed, (backend, verdict.invariances)
    assert all(v.cases for v in verdict.invariances if v.invariance is not Invariance.SPAN)
    golden = golden_of(artifact, gguf, backend, greedy_tokens=2)
    assert golden.passed, (backend, golden.failures)
