"""What the quality gate measured and how it is judged: text, figures, limits, verdict, file."""

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
from anespec.validate.quality.divergence import MOST_LIKELY, Divergence, Numbers

HISTOGRAM_DECADES = (-8, 2)
BINS_PER_DECADE = 2
LARGEST_EXPONENT = 600.0
"""e to more than this, and some times that, has no double."""

FEW_TOKENS = 300
"""Below this many the mean says little: the divergence of tokens spreads about twice as wide as its mean, so
the mean's standard error, spread / sqrt(n), is more than a ninth of it."""

Nats = Annotated[float, Field(ge=0, le=1e12)]
"""Far above what logits of any model come to."""


class ScoredText(Record):
    """The text that was read, of which the first `scored` tokens were predicted and judged."""

    name: str
    sha256: str
    scored: Count
    asked: Count | None = Field(default=None, description="how many tokens were to be scored at most")
    window: Count = Field(description="tokens of the longest piece that was read in one go")


class Spread(Record):
    """How one number per token is distributed.

    `standard_error` is that of the mean, tokens taken as independent; None where there is one token.
    """

    mean: float
    standard_error: float | None
    median: float
    p95: float
    p99: float
    largest: float


class HistogramBin(Record):
    """Tokens whose divergence is at least `low` and below `high`, both in nats.

    The first bin has all below it too, and the last all above.
    """

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    tokens: Index


class QualityFigures(Record):
    """The divergence from the reference to the artifact, and what each makes of the text, in nats a token.

    `top1_agreement` is the share of tokens where both hold the same token for the likeliest;
    `top5_agreement` the mean share of each one's five likeliest tokens that the other names too.
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
        """e to the reference's mean information."""
        return _exp(self.reference_nll)

    @property
    def artifact_perplexity(self) -> float:
        """e to the artifact's mean information."""
        return _exp(self.artifact_nll)

    @property
    def perplexity_change(self) -> float:
        """By how many percent the artifact's perplexity is larger than the reference's."""
        return 100 * (_exp(self.artifact_nll - self.reference_nll) - 1)

    @property
    def perplexity_change_error(self) -> float | None:
        """The standard error of `perplexity_change`, in percent points: the logarithm's, scaled."""
        if self.nll_change_error is None:
            return None
        return 100 * _exp(self.artifact_nll - self.reference_nll) * self.nll_change_error


class Opinion(Record):
    """What one side held likeliest, and the probabilities that it gave to that and to what the text has."""

    top: str
    top_probability: float = Field(ge=0, le=1)
    token_probability: float = Field(ge=0, le=1)


class WorstToken(Record):
    """A token of the text on which the two sides disagreed most; `number` is its place among those scored."""

    number: Index
    before: str = Field(description="the end of what both had read")
    token: str = Field(description="what the text has")
    kl: float = Field(ge=0)
    reference: Opinion
    artifact: Opinion


@dataclass(frozen=True)
class QualityTask:
    """The first `most_tokens` tokens of the file `text`, and what to be held to; None is no limit.

    `max_kl` bounds the mean, in nats; `max_perplexity_change` is a growth in percent.
    """

    text: Path
    most_tokens: int
    max_kl: float | None = None
    max_perplexity_change: float | None = None


class QualityVerdict(Verdict):
    """One run of the quality gate, with the limits that it was judged by, of which there may be none."""

    text: ScoredText
    figures: QualityFigures
    worst: tuple[WorstToken, ...] = Field(default=(), description="by KL divergence, the largest first")
    max_kl: float | None = Field(default=None, ge=0)
    max_perplexity_change: float | None = Field(default=None, ge=0, description="in percent")

    @property
    def failures(self) -> tuple[str, ...]:
        """What is out of bounds, one clause each."""
        figures, found = self.figures, []
        if figures.not_finite:
            found.append(f"{counted(figures.not_finite, 'logit is', 'logits are')} not finite")
        if self.max_kl is not None and figures.kl.mean > self.max_kl:
            found.append(f"a mean KL divergence of {figures.kl.mean:.3g} nats is more than {self.max_kl:g}")
        limit, change = self.max_perplexity_change, figures.perplexity_change
        if limit is not None and change > limit:
            found.append(f"a perplexity that grew by {change:.3g} % grew by more than {limit:g} %")
        return tuple(found)

    @property
    def limited(self) -> bool:
        """Whether anybody asked for a limit; without one the figures are a report."""
        return self.max_kl is not None or self.max_perplexity_change is not None

    @property
    def passed(self) -> bool:
        """Whether every logit is a number and no limit is exceeded."""
        return not self.failures

    @property
    def warning(self) -> str | None:
        """What to bear in mind beside the figures."""
        if self.text.scored >= FEW_TOKENS:
            return None
        return (
            f"only {counted(self.text.scored, 'token')} scored, where {FEW_TOKENS} say more than chance "
            "(--quality-tokens, or a longer text)"
        )

    @property
    def standing(self) -> Status:
        """The outcome as people read it: without a limit that could fail it the figures are a report."""
        if self.failures:
            return Status.FAIL
        return Status.PASS if self.limited else Status.REPORTED


class QualityFile(VerdictFile[QualityVerdict]):
    """gates/quality.json: the newest verdict per circumstances, on whichever text."""

    gate = "quality"


def quality_verdict(
    circumstances: RunEnvironment,
    text: ScoredText,
    tokens: Divergence,
    task: QualityTask,
    worst: Sequence[WorstToken] = (),
) -> QualityVerdict:
    """The verdict over every scored token."""
    return QualityVerdict(
        circumstances=circumstances,
        text=text,
        figures=QualityFigures(
            kl=_spread(tokens.kl),
            kl_histogram=_histogram(tokens.kl),
            top1_agreement=float(tokens.same_top.mean()),
            top5_agreement=float(tokens.shared_top.mean()) / MOST_LIKELY,
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
    """Do nothing where the verdict passed.

    Raises:
        QualityGateError: a limit is exceeded, or logits are not finite; all that is so is named.
    """
    if verdict.passed:
        return
    raise QualityGateError(
        f"on {verdict.circumstances.backend} the artifact has moved too far from its GGUF, over "
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
