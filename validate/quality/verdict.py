"""The quality gate's figures, limits and verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from anespec.manifests.schema import Count, Index, Record
from anespec.manifests.verdicts import RunEnvironment, Status, Verdict, VerdictFile
from anespec.system.errors import QualityGateError
from anespec.system.formatting import counted
from anespec.validate.quality.divergence import TOP_TOKENS, Divergence, Numbers

HISTOGRAM_DECADES = (-8, 2)
BINS_PER_DECADE = 2
LARGEST_EXPONENT = 600.0
"""Larger exponents are cut to this one, since e to their power, or a multiple of it, may overflow a
double."""

MIN_TOKENS = 300
"""The number of tokens below which the mean is uncertain. The divergences of tokens spread about twice as
wide as their mean, so with fewer tokens the mean's standard error, spread / sqrt(n), is more than a
ninth of it."""

Nats = Annotated[float, Field(ge=0, le=1e12)]
"""A value in nats, limited to far more than any model's logits can give."""


class ScoredText(Record):
    """The text that was read; its first `scored` tokens were predicted and judged."""

    name: str
    sha256: str
    scored: Count
    asked: Count | None = Field(default=None, description="the most tokens to score")
    window: Count = Field(description="tokens of the longest piece that was read at once")


class Spread(Record):
    """The distribution of one number per token.

    `standard_error` is that of the mean, with tokens taken as independent; None for one token.
    """

    mean: float
    standard_error: float | None
    median: float
    p95: float
    p99: float
    largest: float


class HistogramBin(Record):
    """The tokens whose divergence is at least `low` and below `high`, both in nats.

    The first bin also has all tokens below it, and the last all tokens above.
    """

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    tokens: Index


class QualityFigures(Record):
    """The divergence from the reference to the artifact, and the mean nll of each in nats per token.

    `top1_agreement` is the share of tokens where both have the same likeliest token. `top5_agreement` is the
    mean share of the five likeliest tokens that both have in common.
    """

    kl: Spread
    kl_histogram: tuple[HistogramBin, ...]
    top1_agreement: float = Field(ge=0, le=1)
    top5_agreement: float = Field(ge=0, le=1)
    reference_nll: Nats
    artifact_nll: Nats
    nll_change_error: Nats | None = Field(description="standard error of the mean of the differences")
    not_finite: Index = Field(description="logits of the artifact that are not numbers")

    @property
    def reference_perplexity(self) -> float:
        """Return e to the reference's mean nll."""
        return _exp(self.reference_nll)

    @property
    def artifact_perplexity(self) -> float:
        """Return e to the artifact's mean nll."""
        return _exp(self.artifact_nll)

    @property
    def perplexity_change(self) -> float:
        """Return by how many percent the artifact's perplexity is larger than the reference's."""
        return 100 * (_exp(self.artifact_nll - self.reference_nll) - 1)

    @property
    def perplexity_change_error(self) -> float | None:
        """Return the standard error of `perplexity_change` in percentage points: the logarithm's, scaled."""
        if self.nll_change_error is None:
            return None
        return 100 * _exp(self.artifact_nll - self.reference_nll) * self.nll_change_error


class Opinion(Record):
    """One side's likeliest token with its probability, and the probability of the text's token."""

    top: str
    top_probability: float = Field(ge=0, le=1)
    token_probability: float = Field(ge=0, le=1)


class WorstToken(Record):
    """A token on which the two sides disagreed most; `number` is its index among the scored tokens."""

    number: Index
    before: str = Field(description="the end of the text that both had read")
    token: str = Field(description="the token of the text")
    kl: float = Field(ge=0)
    reference: Opinion
    artifact: Opinion


@dataclass(frozen=True)
class QualityTask:
    """The first `most_tokens` tokens of the file `text`, and their limits; None is no limit.

    `max_kl` bounds the mean, in nats; `max_perplexity_change` is a growth in percent.
    """

    text: Path
    most_tokens: int
    max_kl: float | None = None
    max_perplexity_change: float | None = None


class QualityVerdict(Verdict):
    """The result of one run of the quality gate, with the limits that judge it, if there are any."""

    text: ScoredText
    figures: QualityFigures
    worst: tuple[WorstToken, ...] = Field(default=(), description="by KL divergence, the largest first")
    max_kl: float | None = Field(default=None, ge=0)
    max_perplexity_change: float | None = Field(default=None, ge=0, description="in percent")

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what exceeds its limit, one clause each."""
        figures, found = self.figures, []
        if figures.not_finite:
            found.append(f"{counted(figures.not_finite, 'logit is', 'logits are')} not finite")
        if self.max_kl is not None and figures.kl.mean > self.max_kl:
            found.append(f"a mean KL divergence of {figures.kl.mean:.3g} nats is more than {self.max_kl:g}")
        limit, change = self.max_perplexity_change, figures.perplexity_change
        if limit is not None and change > limit:
            found.append(f"a perplexity growth of {change:.3g} % is more than {limit:g} %")
        return tuple(found)

    @property
    def limited(self) -> bool:
        """Return whether there is any limit; without one the figures are only reported."""
        return self.max_kl is not None or self.max_perplexity_change is not None

    @property
    def passed(self) -> bool:
        """Return whether every logit is finite and no limit is exceeded."""
        return not self.failures

    @property
    def warning(self) -> str | None:
        """Return a caution about the figures, or None."""
        if self.text.scored >= MIN_TOKENS:
            return None
        return (
            f"only {counted(self.text.scored, 'token')} scored, too few for a reliable mean; score at least "
            f"{MIN_TOKENS} (--quality-tokens, or a longer text)"
        )

    @property
    def standing(self) -> Status:
        """Return the verdict as a status; without limits that could fail, the figures are only reported."""
        if self.failures:
            return Status.FAIL
        return Status.PASS if self.limited else Status.REPORTED


class QualityFile(VerdictFile[QualityVerdict]):
    """gates/quality.json: the newest verdict of each environment, on any text."""

    gate = "quality"


def quality_verdict(
    circumstances: RunEnvironment,
    text: ScoredText,
    tokens: Divergence,
    task: QualityTask,
    worst: Sequence[WorstToken] = (),
) -> QualityVerdict:
    """Return the verdict over all scored tokens."""
    return QualityVerdict(
        circumstances=circumstances,
        text=text,
        figures=QualityFigures(
            kl=_spread(tokens.kl),
            kl_histogram=_histogram(tokens.kl),
            top1_agreement=float(tokens.same_top.mean()),
            top5_agreement=float(tokens.shared_top.mean()) / TOP_TOKENS,
            reference_nll=float(tokens.reference_nll.mean()),
            artifact_nll=float(tokens.artifact_nll.mean()),
            nll_change_error=_standard_error(tokens.artifact_nll - tokens.reference_nll),
            not_finite=tokens.not_finite,
        ),
        worst=tuple(worst),
        max_kl=task.max_kl,
        max_perplexity_change=task.max_perplexity_change,
    )


def require_quality(verdict: QualityVerdict) -> None:
    """Require that the verdict passed.

    Raises:
        QualityGateError: a limit is exceeded, or logits are not finite; the message names all failures.
    """
    if verdict.passed:
        return
    raise QualityGateError(
        f"on {verdict.circumstances.backend} the artifact differs too much from its GGUF, over "
        f"{counted(verdict.text.scored, 'token')} of {verdict.text.name}: {' and '.join(verdict.failures)}; "
        "convert with more precise --weights"
    )


def _spread(values: Numbers) -> Spread:
    median, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(
        mean=float(values.mean()),
        standard_error=_standard_error(values),
        median=float(median),
        p95=float(p95),
        p99=float(p99),
        largest=float(values.max()),
    )


def _standard_error(values: Numbers) -> float | None:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _histogram(values: Numbers) -> tuple[HistogramBin, ...]:
    first, last = HISTOGRAM_DECADES
    edges = np.logspace(first, last, (last - first) * BINS_PER_DECADE + 1)
    counts, _ = np.histogram(values.clip(edges[0], np.nextafter(edges[-1], 0)), edges)
    return tuple(
        HistogramBin(low=float(low), high=float(high), tokens=int(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    )


def _exp(nats: float) -> float:
    return math.exp(min(nats, LARGEST_EXPONENT))
