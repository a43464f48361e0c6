"""Define the tables of a suite, which the terminal and the page show alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from anespec.validate.bench.figures import Figures, figures_of
from anespec.validate.bench.measure import Case, Variant, Way
from anespec.validate.bench.plots import Plot

UNKNOWN = "-"


@dataclass(frozen=True)
class SuiteTable:
    """A table of texts; its first `names` columns name the rows, the others hold figures.

    Names of columns differ, and may have two lines.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1

    @property
    def headings(self) -> dict[str, str]:
        """Return the columns' names on one line, each with its class on a page."""
        return {
            name.replace("\n", " "): "number" if place >= self.names else ""
            for place, name in enumerate(self.columns)
        }


@dataclass(frozen=True)
class Shown:
    """What a view shows: tables, then plots, then sentences."""

    tables: tuple[SuiteTable, ...] = ()
    plots: tuple[Plot | None, ...] = ()
    sentences: tuple[str, ...] = ()


def label(way: Way) -> str:
    """Return the short name of a way."""
    if way.as_they_pay:
        return f"{way.name}, as they pay"
    return f"{way.name}, k {way.most}" if way.most else way.name


def names_of(ways: Sequence[Way]) -> tuple[str, ...]:
    """Return the names of ways, each once."""
    return tuple(dict.fromkeys(way.name for way in ways))


def best_of(ways: Sequence[Way], name: str, cases: Sequence[Case]) -> tuple[Way, Figures] | None:
    """Return the fastest of the ways of a name on these cases; None if no text was long enough."""
    timed = [(way, f) for way in ways if way.name == name if (f := figures_of(cases, way)) is not None]
    return max(timed, key=lambda pair: pair[1].speedup.median, default=None)


def variant_of(case: Case, way: Way) -> Variant:
    """Return the runs of a way; those without drafts are a way, too."""
    return next(each for each in (case.plain, *case.drafted) if each.way == way)


def decode_speed(case: Case, way: Way) -> float | None:
    """Return the decoded tokens per second; None if the text is too short."""
    return median(run.speed for run in variant_of(case, way).runs) if case.is_timed else None


def share_text(figures: Figures) -> str:
    """Return the share of the draft rows that ran that were right; unknown if none ran."""
    tried, right = sum(figures.proposed_by_position), sum(figures.accepted_by_position)
    return f"{right / tried:.0%}" if tried else UNKNOWN
