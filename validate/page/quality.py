"""Lay out divergence and perplexity on texts."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.validate.page.scales import EvenScale, Tick, power
from anespec.validate.quality.verdict import QualityVerdict

WHISKER_ERRORS = 2
"""The length of a whisker to either side, in standard errors."""


@dataclass(frozen=True)
class Column:
    """The tokens in one bin of a histogram; all numbers but `tokens` are percent."""

    start: float
    width: float
    height: float
    tokens: int
    title: str


@dataclass(frozen=True)
class ChangeRow:
    """The change of a text's perplexity in percent, with its whisker and its limit if it has one."""

    label: str
    low: float
    position: float
    high: float
    limit_position: float | None
    words: str
    good: bool


@dataclass(frozen=True)
class QualityView:
    """One verdict with its histogram."""

    verdict: QualityVerdict
    columns: tuple[Column, ...]
    ticks: tuple[Tick, ...]
    words: str


@dataclass(frozen=True)
class ChangesView:
    """The perplexity changes of all verdicts on one scale."""

    scale: EvenScale
    rows: tuple[ChangeRow, ...]


def view_quality(verdict: QualityVerdict) -> QualityView:
    """Return the histogram from the first bin with tokens to the last, and one more bin at either side."""
    bins = verdict.figures.kl_histogram
    used = [number for number, part in enumerate(bins) if part.tokens] or [0]
    shown = bins[max(0, used[0] - 1) : used[-1] + 2]
    most, width = max((part.tokens for part in shown), default=0) or 1, 100 / max(1, len(shown))
    columns = tuple(
        Column(
            round(number * width, 3),
            round(width, 3),
            round(100 * part.tokens / most, 3),
            part.tokens,
            f"{part.tokens} tokens from {part.low:.2g} to {part.high:.2g} nats",
        )
        for number, part in enumerate(shown)
    )
    edges = [part.low for part in shown] + [part.high for part in shown[-1:]]
    ticks = [
        Tick(round(number * width, 3), power(exponent))
        for number, edge in enumerate(edges)
        if (exponent := _exponent(edge)) is not None
    ]
    kl = verdict.figures.kl
    words = (
        f"KL divergence of {verdict.text.scored} tokens: mean {kl.mean:.3g}, median {kl.median:.3g}, "
        f"99th percentile {kl.p99:.3g}, largest {kl.largest:.3g} nats"
    )
    return QualityView(verdict, columns, tuple(ticks), words)


def view_changes(verdicts: Sequence[QualityVerdict]) -> ChangesView:
    """Return a whisker for each verdict."""
    spans = [_span(verdict) for verdict in verdicts]
    limits = [v.max_perplexity_change for v in verdicts if v.max_perplexity_change is not None]
    scale = EvenScale.around([*(value for span in spans for value in span), *limits])
    return ChangesView(scale, tuple(_change(v, scale) for v in verdicts))


def _change(verdict: QualityVerdict, scale: EvenScale) -> ChangeRow:
    figures, limit = verdict.figures, verdict.max_perplexity_change
    low, high = _span(verdict)
    error = figures.perplexity_change_error
    words = f"{figures.perplexity_change:+.3f} %" + ("" if error is None else f" ± {error:.3f} %")
    return ChangeRow(
        label=f"{verdict.text.name} on {verdict.circumstances.backend}",
        low=scale.position(low),
        position=scale.position(figures.perplexity_change),
        high=scale.position(high),
        limit_position=None if limit is None else scale.position(limit),
        words=words,
        good=verdict.passed,
    )


def _span(verdict: QualityVerdict) -> tuple[float, float]:
    change = verdict.figures.perplexity_change
    reach = WHISKER_ERRORS * (verdict.figures.perplexity_change_error or 0.0)
    return change - reach, change + reach


def _exponent(edge: float) -> int | None:
    """Return the n of an edge 10^n; None for other edges."""
    text = f"{edge:.6e}"
    return int(text[9:]) if text.startswith("1.000000e") else None
