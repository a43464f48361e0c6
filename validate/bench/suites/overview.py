"""Show the results of a suite by text and by way, each summed over the other, and what passes cost."""

from collections.abc import Iterator, Sequence

from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.validate.bench.figures import Figures, figures_of
from anespec.validate.bench.measure import Case, Way
from anespec.validate.bench.plots import Plot, Series, series_plot
from anespec.validate.bench.sentences import position_text, sentence
from anespec.validate.bench.suites.report import SuiteReport
from anespec.validate.bench.suites.tables import UNKNOWN, Shown, SuiteTable, label, names_of

COLUMNS = ("tokens/s\nwithout", "with", "speedup\n(range)", "tokens\nper pass", "right by\nposition")


def texts(report: SuiteReport) -> Shown:
    """Show every text with drafts as they pay, and the share of right drafts by their position."""
    tables, plots = [], []
    for way in (way for way in report.ways if way.as_they_pay):
        rows = [(name, *_cells(figures_of(cases, way))) for name, cases in report.sections.items()]
        rows.append(("all", *_cells(figures_of(report.cases, way))))
        heading = "text, tokens" if len(report.suite.output_tokens) > 1 else "text"
        tables.append(SuiteTable(label(way), (heading, *COLUMNS), tuple(rows)))
        series = [
            Series(name, tuple(enumerate(f.shares_by_position, start=1)))
            for name, cases in report.classes.items()
            if (f := figures_of(cases, way)) is not None and f.shares_by_position
        ]
        title = f"Right drafts by their position, {label(way)}"
        plots.append(series_plot(title, "position in the draft", series, y_percent=True, y_shown=(0.0, 1.0)))
    return Shown(tuple(tables), tuple(plots))


def ways(report: SuiteReport) -> Shown:
    """Show all texts together in every way, and the speedup of each class by the number of drafts."""
    found = [(way, figures_of(report.cases, way)) for way in report.ways]
    is_metered = any(f is not None and f.drafted_joules is not None for _, f in found)
    is_one = len(names_of(report.ways)) == 1
    rows = tuple(
        (
            label(way).removeprefix(f"{way.name}, ") if is_one else label(way),
            *_cells(f),
            *((_joules(f),) if is_metered else ()),
        )
        for way, f in found
    )
    columns = ("way", *COLUMNS, *(("joules\na token",) if is_metered else ()))
    table = SuiteTable("all texts by the number of drafts", columns, rows)
    return Shown((table,), (_by_drafts(report),), tuple(_energy(report, [f for _, f in found])))


def costs(report: SuiteReport) -> Shown:
    """Show the measured cost of passes by their rows, and on a Mac the prediction."""
    widths = report.costs.widths
    rows = tuple(
        (str(each.width), f"{1e3 * each.seconds:.2f}", f"{each.seconds / widths[0].seconds:.2f}")
        for each in widths
        if each.width <= 2 * (MAX_DRAFT_LEN + 1)
    )
    columns = ("rows", "milliseconds", "relative to\nthe narrowest")
    compared = () if report.comparison is None else (str(report.comparison),)
    return Shown((SuiteTable("Cost of a pass", columns, rows),), sentences=compared)


def _cells(figures: Figures | None) -> tuple[str, ...]:
    if figures is None:
        return ("too short", *("" for _ in COLUMNS[1:]))
    return (
        f"{figures.plain.median:.1f}",
        f"{figures.drafted.median:.1f}",
        str(figures.speedup),
        f"{figures.tokens_per_pass:.2f}",
        position_text(figures.shares_by_position),
    )


def _joules(figures: Figures | None) -> str:
    joules = None if figures is None else figures.drafted_joules
    return UNKNOWN if joules is None else f"{joules.median:.3g}"


def _energy(report: SuiteReport, found: Sequence[Figures | None]) -> Iterator[str]:
    """Say the energy of a token in the first way and without drafts, or why it is not known."""
    first = next((f for f in found if f is not None), None)
    if first is None or first.plain_joules is None or first.drafted_joules is None:
        yield sentence(report.energy)
        return
    yield (
        f"A decoded token takes {first.drafted_joules.median:.3g} J with {label(first.way)} and "
        f"{first.plain_joules.median:.3g} J without ({report.energy})."
    )


def _by_drafts(report: SuiteReport) -> Plot | None:
    fixed = [way for way in report.ways if way.most and not way.as_they_pay]

    def points(cases: Sequence[Case], way: Way) -> Iterator[tuple[float, float]]:
        if (f := figures_of(cases, way)) is not None:
            yield way.most, f.speedup.median

    series = [
        Series(name, tuple(point for way in fixed for point in points(cases, way)))
        for name, cases in report.classes.items()
    ]
    return series_plot("Speedup by the number of drafts a pass", "drafts a pass", series, y_shown=(1.0,))
