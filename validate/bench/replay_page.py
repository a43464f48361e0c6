"""Render the page of a replay: one self-contained HTML file in the style of `bench run`'s."""

from dataclasses import dataclass
from pathlib import Path

from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.validate.bench.replay import Replayed
from anespec.validate.bench.timed_source import Samples
from anespec.validate.page.templating import render_report

TEMPLATE = Path(__file__).parent / "templates" / "replay.jinja"


@dataclass(frozen=True)
class ReplayRow:
    """One kind of session; `width` is the end of its bar, in percent of the longest.

    `speedup` is None if the costs of passes are not known.
    """

    name: str
    counts: RequestStats
    width: float
    speedup: float | None

    @property
    def shares(self) -> list[float]:
        """Return, for each position in a draft, the share of the drafts run there that were right."""
        pairs = zip(self.counts.accepted_by_position, self.counts.proposed_by_position, strict=True)
        return [accepted / proposed for accepted, proposed in pairs if proposed]


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of a replay, for its page."""

    files: tuple[str, ...]
    vocabulary: str
    drafter: str
    block: int
    costs: PassCosts | None = None


def speedup(statistics: RequestStats, costs: PassCosts) -> float:
    """Return the cost of the same tokens without drafts, divided by their cost with drafts.

    Returns 1 if there were no passes.
    """
    alone = statistics.decoded_tokens * costs.widths[0].seconds
    return alone / statistics.decode_seconds if statistics.decode_seconds else 1.0


def render_replay_page(result: Replayed, settings: ReplaySettings) -> str:
    """Return the page as HTML. All text is escaped, since names come from a file of sessions."""
    found = {**result.categories, "overall": result.overall}
    longest = max((counts.tokens_per_pass for counts in found.values()), default=0.0) or 1.0
    rows = [
        ReplayRow(
            name,
            counts,
            round(100 * counts.tokens_per_pass / longest, 2),
            None if settings.costs is None else speedup(counts, settings.costs),
        )
        for name, counts in found.items()
    ]
    taken = result.times
    times: list[tuple[str, Samples]] = [
        ("a proposal", taken.proposal),
        ("observing a token", taken.observing),
        ("reading a prompt's token", taken.opening),
        ("closing a session", taken.closing),
    ]
    return render_report(
        TEMPLATE,
        result=result,
        settings=settings,
        rows=rows,
        positions=max((len(row.shares) for row in rows), default=0),
        sources=sorted(result.overall.by_source, key=lambda each: -each.accepted),
        times=times if settings.drafter != "none" else [],
    )
