"""KL divergence, perplexity and agreement against the formulas written out."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.manifests.verdicts import RunEnvironment, Status
from anespec.system.errors import QualityGateError
from anespec.validate.quality.divergence import ROWS_AT_ONCE, Divergence, diverge, log_softmax
from anespec.validate.quality.verdict import (
    MIN_TOKENS,
    QualityFile,
    QualityTask,
    QualityVerdict,
    ScoredText,
    quality_verdict,
    require_quality,
)

HERE = RunEnvironment(backend="torch", library_version="2", machine="any", threads=1, artifact="0")
THERE = HERE.model_copy(update={"machine": "other"})
SEEDS = st.integers(0, 2**32 - 1)


def logits(seed: int, rows: int, vocabulary: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    reference = (rng.standard_normal((rows, vocabulary)) * scale).astype(np.float32)
    artifact = (reference + rng.standard_normal(reference.shape) * 0.1 * scale).astype(np.float16)
    return reference, artifact, rng.integers(vocabulary, size=rows)


@given(seed=SEEDS, rows=st.integers(1, 2 * ROWS_AT_ONCE + 1), scale=st.sampled_from([0.1, 3.0, 40.0]))
def test_one_token_at_a_time_by_the_book(seed: int, rows: int, scale: float) -> None:
    reference, artifact, targets = logits(seed, rows, 11, scale)
    found = diverge(reference, artifact, targets)
    for row in range(rows):
        p = [math.exp(float(x) - float(reference[row].max())) for x in reference[row]]
        q = [math.exp(float(x) - float(artifact[row].max())) for x in artifact[row]]
        p, q = [x / math.fsum(p) for x in p], [x / math.fsum(q) for x in q]
        kl = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
        assert found.kl[row] == pytest.approx(kl, abs=1e-9, rel=1e-6)
        assert found.reference_nll[row] == pytest.approx(-math.log(p[targets[row]]), abs=1e-9)
        assert found.artifact_nll[row] == pytest.approx(-math.log(q[targets[row]]), abs=1e-9)
        assert found.same_top[row] == (reference[row].argmax() == artifact[row].argmax())
        best = set(np.argsort(-reference[row])[:5]) & set(np.argsort(-artifact[row].astype(np.float32))[:5])
        if len(set(artifact[row].tolist())) == 11:
            assert found.shared_top[row] == len(best)


@given(seed=SEEDS)
def test_equal_logits_and_shifted_ones_do_not_diverge(seed: int) -> None:
    reference, _, targets = logits(seed, 5, 50, 4.0)
    found = diverge(reference, reference + np.float32(2.0), targets)
    assert found.kl.max() < 1e-10
    assert found.kl.min() >= 0
    assert found.same_top.all()
    assert (found.shared_top == 5).all()


def test_huge_logits_have_a_softmax() -> None:
    assert log_softmax(np.array([[65504.0, -65504.0]], dtype=np.float16)).tolist() == [[0.0, -131008.0]]


def verdict_over(tokens: Divergence, **limits: float) -> QualityVerdict:
    text = ScoredText(name="a.txt", sha256="00", scored=len(tokens.kl), window=64)
    return quality_verdict(HERE, text, tokens, QualityTask(Path("a.txt"), 512, **limits))


def test_perplexity_and_its_change_are_those_of_the_mean() -> None:
    reference, artifact, targets = logits(3, 400, 30, 3.0)
    figures = verdict_over(diverge(reference, artifact, targets)).figures
    p = np.exp(log_softmax(reference))[np.arange(400), targets]
    q = np.exp(log_softmax(artifact))[np.arange(400), targets]
    assert figures.reference_perplexity == pytest.approx(float(np.prod(p ** (-1 / 400))))
    assert figures.artifact_perplexity == pytest.approx(float(np.prod(q ** (-1 / 400))))
    change = 100 * (figures.artifact_perplexity / figures.reference_perplexity - 1)
    assert figures.perplexity_change == pytest.approx(change)


@pytest.mark.slow
def test_the_standard_error_is_how_much_the_change_wavers() -> None:
    """Over many texts of 200 tokens the changes spread as far as one text's standard error says."""
    reference, artifact, targets = logits(4, 200 * 300, 30, 1.0)
    changes, errors = [], []
    for start in range(0, len(targets), 200):
        rows = slice(start, start + 200)
        figures = verdict_over(diverge(reference[rows], artifact[rows], targets[rows])).figures
        changes.append(figures.perplexity_change)
        errors.append(figures.perplexity_change_error or 0)
    assert np.mean(errors) == pytest.approx(float(np.std(changes)), rel=0.15)


def test_the_histogram_has_every_token() -> None:
    reference, artifact, targets = logits(5, 300, 30, 3.0)
    tokens = diverge(reference, artifact, targets)
    tokens = Divergence.joined([tokens, diverge(reference, reference, targets)])
    bins = verdict_over(tokens).figures.kl_histogram
    assert sum(part.tokens for part in bins) == 600
    assert bins[0].tokens >= 300
    for part in bins[1:-1]:
        assert part.tokens == int(((tokens.kl >= part.low) & (tokens.kl < part.high)).sum())


def test_one_token_has_no_standard_error() -> None:
    figures = verdict_over(diverge(*logits(6, 1, 30, 3.0))).figures
    assert figures.kl.standard_error is None
    assert figures.perplexity_change_error is None


def test_limits_make_it_a_gate() -> None:
    reference, artifact, targets = logits(7, 100, 30, 3.0)
    tokens = diverge(reference, artifact, targets)
    report = verdict_over(tokens)
    assert report.passed
    assert not report.limited
    require_quality(report)
    kl, change = report.figures.kl.mean, report.figures.perplexity_change
    assert verdict_over(tokens, max_kl=kl * 1.01).passed
    assert change > 0
    assert verdict_over(tokens, max_perplexity_change=change + 0.01).passed
    for limits in ({"max_kl": kl * 0.99}, {"max_perplexity_change": change - 0.01}):
        red = verdict_over(tokens, **limits)
        assert not red.passed
        with pytest.raises(QualityGateError, match=r"a\.txt"):
            require_quality(red)


def test_logits_that_are_not_finite_are_red_without_a_limit() -> None:
    reference, artifact, targets = logits(8, 10, 30, 3.0)
    artifact[4, 3], artifact[5, 1] = np.nan, np.inf
    red = verdict_over(diverge(reference, artifact, targets))
    assert red.figures.not_finite == 2
    assert red.failures == ("2 logits are not finite",)
    with pytest.raises(QualityGateError, match="not finite"):
        require_quality(red)


def test_a_hopeless_artifact_still_has_figures() -> None:
    reference = np.array([[40000.0, -40000.0]] * 3, dtype=np.float32)
    verdict = verdict_over(diverge(reference, -reference, np.array([0, 0, 0])))
    assert QualityVerdict.model_validate_json(verdict.model_dump_json()) == verdict
    assert verdict.figures.perplexity_change > 1e100
    assert verdict.figures.kl_histogram[-1].tokens == 3


def test_a_later_verdict_replaces_an_earlier_one_of_the_same_circumstances_on_any_text() -> None:
    first = verdict_over(diverge(*logits(9, 10, 30, 3.0)))
    other_text = first.model_copy(update={"text": first.text.model_copy(update={"sha256": "11"})})
    elsewhere = first.model_copy(update={"circumstances": THERE})
    newer = verdict_over(diverge(*logits(10, 10, 30, 3.0)))
    file = QualityFile()
    for verdict in (first, other_text, elsewhere, newer):
        file = file.with_verdict(verdict)
    assert file.verdicts == (elsewhere, newer)


def test_figures_without_a_limit_are_reported_and_few_tokens_are_warned_of() -> None:
    few = verdict_over(diverge(*logits(9, 10, 30, 3.0)))
    assert few.standing is Status.REPORTED
    assert few.warning is not None
    assert few.warning.startswith("only 10 tokens scored")
    enough = few.text.model_copy(update={"scored": MIN_TOKENS})
    assert few.model_copy(update={"text": enough}).warning is None
    assert few.model_copy(update={"max_kl": 1e3}).standing is Status.PASS
    assert few.model_copy(update={"max_kl": 0.0}).standing is Status.FAIL
    broken = few.figures.model_copy(update={"not_finite": 1})
    judged = few.model_copy(update={"figures": broken})
    assert (judged.standing, judged.failures) == (Status.FAIL, ("1 logit is not finite",))
