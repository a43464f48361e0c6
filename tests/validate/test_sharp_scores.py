"""Biases of queries and keys that make scores of thousands, which are computed and judged like others."""

from pathlib import Path

import numpy as np
import pytest
from converting import build
from family_files import Values, Variant
from planted import GRAPH_BUGS
from slow import slow_but

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.validate.gates import golden_gate
from anespec.validate.golden.figures import GoldenVerdict

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
RAW = 6_000
"""The largest product of the biases of a query and a key; the scores are a quarter of it."""

BELOW_ANY_MASK_OF_TEN_THOUSAND = 45_000
"""A product of which the negative is a score of -11,000, less than -1e4."""


def biases(largest: float, sign: int | None = None) -> tuple[Values, Values]:
    """Random biases of q and k whose products are at most this large; with a sign the first is that large."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(HEADS, HEAD_DIM)), rng.normal(size=(KV_HEADS, HEAD_DIM))
    if sign is not None:
        q = np.repeat(k, HEADS // KV_HEADS, axis=0) * sign
    products = [abs(q[head] @ k[head // (HEADS // KV_HEADS)]) for head in range(HEADS)]
    factor = np.sqrt(largest / max(products))
    first, second = ((each * factor).astype(np.float16).astype(np.float32).ravel() for each in (q, k))
    return first, second


def qwen2(folder: Path, q: Values, k: Values) -> tuple[Artifact, Path]:
    keys = {
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "embedding_length": HEADS * HEAD_DIM,
        "block_count": 2,
        # Slow pairs, as those in which trained models have large biases, keep the scores of all positions.
        "rope.freq_base": 1e12,
    }
    tensors = {"blk.*.attn_q.bias": q, "blk.*.attn_k.bias": k}
    gguf = Variant("qwen2", keys, tensors).write(folder / "m.gguf")
    weights = WeightChoice(WeightFormat.FP16)
    artifact = Artifact(
        build(gguf, folder / "m.anespec", target=Target.CPU, context=256, weights=weights).path
    )
    return artifact, gguf


def golden(artifact: Artifact, gguf: Path, backend: str) -> GoldenVerdict:
    return golden_gate(artifact, gguf, backend, 1, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "torch-flush", "openvino", "mlx"])
def test_scores_of_thousands_are_green(tmp_path: Path, backend: str) -> None:
    verdict = golden(*qwen2(tmp_path, *biases(RAW)), backend)
    assert verdict.failures == ()
    assert verdict.passed


@pytest.mark.parametrize("backend", slow_but(["torch", "openvino", "mlx"], "openvino"))
def test_a_hidden_slot_loses_to_every_score_that_is_seen(tmp_path: Path, backend: str) -> None:
    """With a mask of -1e4 the zeros in unused slots score more than the keys."""
    verdict = golden(*qwen2(tmp_path, *biases(BELOW_ANY_MASK_OF_TEN_THOUSAND, sign=-1)), backend)
    assert verdict.failures == ()


@pytest.mark.slow
@pytest.mark.parametrize("bug", GRAPH_BUGS)
def test_a_bug_is_red_beside_such_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    GRAPH_BUGS[bug](monkeypatch)
    assert golden(*qwen2(tmp_path, *biases(RAW)), "torch").failures
