"""Write the results of the fits as sentences, for the command line and the page."""

from collections.abc import Iterable
from itertools import islice

from anespec.system.formatting import counted
from anespec.validate.bench.fits import CONFIDENCE, CostFit, Estimate, LineFit

SHOWN_POSITIONS = 4
"""How many positions of a draft a table shows; JSON has all."""

INTERVAL = f"{CONFIDENCE:.0%}".replace("%", " %")


def sentence(text: str) -> str:
    """Return a message as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def position_text(shares: Iterable[float]) -> str:
    """Return the shares of right drafts at the first positions, e.g. `71% 62% 55% 40%`."""
    return " ".join(f"{share:.0%}" for share in islice(shares, SHOWN_POSITIONS))


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
        limits = f"{INTERVAL}: {acceptance_text(even.low)} to {acceptance_text(even.high)}"
    if even.value <= 0:
        return f"{fitted}: by this line drafts pay at any acceptance ({limits})."
    if even.value > 1:
        return f"{fitted}: by this line drafts pay at no acceptance, not even of all ({limits})."
    return f"{fitted}; break-even at an acceptance of {acceptance_text(even.value)} ({limits})."


def acceptance_text(acceptance: float) -> str:
    """Return an acceptance in percent; one beyond what there can be is `below 0 %` or `above 100 %`."""
    if acceptance < 0:
        return "below 0 %"
    return "above 100 %" if acceptance > 1 else f"{100 * acceptance:.1f} %"


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
