"""Write the results of the fits as sentences, for the command line and the page."""

from collections.abc import Iterable
from itertools import islice

from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.system.formatting import counted, listed
from anespec.validate.bench.fits import CONFIDENCE, CostFit, Estimate, LineFit
from anespec.validate.bench.report import BenchReport

SHOWN_POSITIONS = 4
"""How many positions of a draft a table shows; JSON and plots have all."""

INTERVAL = f"{CONFIDENCE:.0%}".replace("%", " %")


def comparison_sentence(report: BenchReport) -> str:
    """Return whether speculation changed any text."""
    compared = (
        f"{counted(report.comparisons, 'comparison')} of texts with speculation and without, "
        f"{counted(report.compared_tokens, 'token')}"
    )
    if not report.differences:
        return f"{compared}: none differs."
    return f"{compared}: {counted(len(report.differences), 'pair')} differ. First {report.differences[0]}."


def cost_text(report: BenchReport) -> str:
    """Return the cost of passes of the widths that drafts can reach, to be read after `a pass of`."""
    shown = [each for each in report.costs.widths if each.width <= 2 * (MAX_DRAFT_LEN + 1)]
    rows = listed([str(each.width) for each in shown])
    times = listed([f"{1e3 * each.seconds:.2f}" for each in shown])
    return f"{rows} rows costs {times} ms"


def energy_sentence(report: BenchReport) -> str:
    """Return the energy of a token with drafts as they pay and without, or why it is not known."""
    figures = report.figures()
    if figures is None or figures.plain_joules is None or figures.drafted_joules is None:
        return sentence(report.energy)
    return (
        f"A decoded token takes {figures.drafted_joules.median:.3g} J with drafts as they pay and "
        f"{figures.plain_joules.median:.3g} J without ({report.energy})."
    )


def sentence(text: str) -> str:
    """Return a message as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def position_text(shares: Iterable[float]) -> str:
    """Return the shares of right drafts at the first positions, e.g. `71% 62% 55% 40%`."""
    return " ".join(f"{share:.0%}" for share in islice(shares, SHOWN_POSITIONS))


def fit_sentences(report: BenchReport) -> list[str]:
    """Return the sentences on speed against acceptance with its break-even, then on the cost of drafts."""
    found = [line_sentence(report.shown_line)] if report.shown_line is not None else []
    found += [cost_sentence(report.cost)] if report.cost is not None else []
    return found or ["There are too few texts for a fit; give more --classes or --lengths."]


def line_sentence(line: LineFit) -> str:
    """Return the fitted line of speed against acceptance, with its break-even."""
    sign = "-" if line.slope < 0 else "+"
    fitted = (
        f"With {counted(line.drafts, 'draft')} a pass, speedup = {line.intercept:.3f} {sign} "
        f"{abs(line.slope):.3f} x acceptance ({line.points} texts)"
    )
    even = line.break_even
    if even is None:
        return f"{fitted}: speed does not grow with acceptance here, so there is no break-even."
    if even.low is None or even.high is None:
        limits = "the data do not bound it"
    else:
        limits = f"{INTERVAL}: {100 * even.low:.1f} to {100 * even.high:.1f} %"
    return f"{fitted}; break-even at an acceptance of {100 * even.value:.1f} % ({limits})."


def cost_sentence(cost: CostFit) -> str:
    """Return the fitted cost of drafts."""
    explained = "" if cost.r_squared is None else f", R^2 = {cost.r_squared:.3f}"
    return (
        f"speedup = (1 + a k) / ((k + 1) r + 1 + b k^2) for k drafts and acceptance a: r = {_text(cost.r)}, "
        f"b = {_text(cost.b)} ({cost.points} points, off by {cost.error:.3f} on average{explained})."
    )


def _text(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4f}"
    return f"{estimate.value:.4f} ({INTERVAL}: {estimate.low:.4f} to {estimate.high:.4f})"
