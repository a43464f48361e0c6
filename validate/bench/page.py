"""Render the page of a bench run: one self-contained HTML file in the style of the gates' report."""

from dataclasses import dataclass
from pathlib import Path

from anespec.system.formatting import counted
from anespec.validate.bench.figures import Figures
from anespec.validate.bench.fits import LineFit
from anespec.validate.bench.measure import Way
from anespec.validate.bench.plots import Axis, Column, Dot, Plot, curve, ticks_across, ticks_up, up
from anespec.validate.bench.report import BenchReport
from anespec.validate.bench.sentences import (
    SHOWN_POSITIONS,
    comparison_sentence,
    energy_sentence,
    fit_sentences,
)
from anespec.validate.page.scales import Tick
from anespec.validate.page.templating import render_report

TEMPLATE = Path(__file__).parent / "templates" / "bench.jinja"


@dataclass(frozen=True)
class SpeedRow:
    """Tokens per second of one kind of text at one length; the four numbers are ends of bars in percent."""

    name: str
    figures: Figures
    plain: float
    drafted: float
    least: float
    most: float


def render_page(report: BenchReport) -> str:
    """Return the page as HTML. All text is escaped, since names come from a model's file."""
    return render_report(
        TEMPLATE,
        report=report,
        shown=SHOWN_POSITIONS,
        overall=report.figures(),
        compared=comparison_sentence(report),
        fits=fit_sentences(report),
        energy=energy_sentence(report),
        rows=_rows(report),
        by_way=[f for way in report.ways if (f := report.figures(way=way)) is not None],
        plots=[
            plot
            for plot in (_by_position(report), _against_acceptance(report), _by_drafts(report))
            if plot is not None
        ],
        costs=[(k, report.cost.cost(k), report.cost.break_even(k)) for k in report.drafts]
        if report.cost is not None
        else [],
    )


def _rows(report: BenchReport) -> list[SpeedRow]:
    found = [
        (f"{each}, {length} tokens", figures)
        for each in report.classes
        for length in report.lengths
        if (figures := report.figures(each, length)) is not None
    ]
    longest = max((max(f.drafted.most, f.plain.most) for _, f in found), default=1.0)
    return [
        SpeedRow(
            name,
            f,
            *(
                round(100 * value / longest, 2)
                for value in (f.plain.median, f.drafted.median, f.drafted.least, f.drafted.most)
            ),
        )
        for name, f in found
    ]


def _by_position(report: BenchReport) -> Plot | None:
    """Plot the share of drafts right at each position, with a group of columns for each kind of text."""
    groups = [
        (each, f)
        for each in report.classes
        if (f := report.figures(each)) is not None and f.proposed_by_position
    ]
    if not groups:
        return None
    y = Axis(0.0, 1.0, 0.25, percent=True)
    wide = 100 / len(groups)
    columns = []
    for number, (each, figures) in enumerate(groups):
        pairs = zip(figures.accepted_by_position, figures.proposed_by_position, strict=True)
        width = 0.7 * wide / len(figures.proposed_by_position)
        for place, (right, tried) in enumerate(pairs):
            share = right / tried
            columns.append(
                Column(
                    round((number + 0.15) * wide + place * width, 3),
                    up(y, share),
                    round(0.9 * width, 3),
                    each,
                    f"{each}, draft {place + 1}: {right} of {tried} right",
                )
            )
    return Plot(
        "Drafts that were right, by their position in the draft",
        "; ".join(column.title for column in columns),
        "kind of text; its columns are draft 1, 2, …",
        tuple(Tick(round((i + 0.5) * wide, 3), each) for i, (each, _) in enumerate(groups)),
        ticks_up(y),
        columns=tuple(columns),
    )


def _against_acceptance(report: BenchReport) -> Plot | None:
    """Plot speedup against acceptance for the shown number of drafts, with the fit and its interval."""
    drafts, line = report.shown_drafts, report.shown_line
    points = [(case, p) for case in report.cases for p in case.points if p.drafts == drafts]
    if not points:
        return None
    x = Axis.around([0.0, *(p.acceptance for _, p in points)], percent=True)
    y = Axis.around([1.0, *(p.speedup for _, p in points), *(_edges(line) if line is not None else ())])
    curves = [curve(x, y, [(x.low, 1.0), (x.high, 1.0)], "even")]
    areas = []
    if line is not None:
        upper = [(a, line.at(a) + h) for a, h in zip(line.acceptances, line.half_widths, strict=True)]
        lower = [(a, line.at(a) - h) for a, h in zip(line.acceptances, line.half_widths, strict=True)]
        areas.append(curve(x, y, [*upper, *reversed(lower)], "band"))
        curves.append(curve(x, y, [(a, line.at(a)) for a in line.acceptances], "fit"))
        if line.break_even is not None and x.low <= line.break_even.value <= x.high:
            value = line.break_even.value
            curves.append(curve(x, y, [(value, y.low), (value, y.high)], "even"))
    dots = tuple(
        Dot(
            x.place(p.acceptance),
            up(y, p.speedup),
            case.prompt.prompt_class,
            f"{case.prompt}, {case.length} tokens: {p.acceptance:.0%} accepted, speedup {p.speedup:.2f}",
        )
        for case, p in points
    )
    return Plot(
        f"Speedup against acceptance, {drafts} drafts a pass",
        "; ".join(dot.title for dot in dots),
        "acceptance; dashed: speedup 1, and the break-even",
        ticks_across(x),
        ticks_up(y),
        dots=dots,
        curves=tuple(curves),
        areas=tuple(areas),
    )


def _edges(line: LineFit) -> list[float]:
    pairs = zip(line.acceptances, line.half_widths, strict=True)
    return [value for a, h in pairs for value in (line.at(a) - h, line.at(a) + h)]


def _by_drafts(report: BenchReport) -> Plot | None:
    """Plot speedup by the number of drafts of a pass: measured for each kind of text, and by the formula."""
    found = [
        (each, f)
        for each in report.classes
        for k in report.drafts
        if (f := report.figures(each, way=Way(k))) is not None
    ]
    if not found or not report.drafts[1:]:
        return None
    x = Axis(0.0, report.drafts[-1] + 1.0, 1.0)
    cost = report.cost
    fitted: dict[str, list[tuple[float, float]]] = {}
    if cost is not None:
        for each, f in found:
            k = f.way.most
            fitted.setdefault(each, []).append((k, cost.speedup(k, f.acceptance)))
    y = Axis.around(
        [
            1.0,
            *(f.speedup.median for _, f in found),
            *(value for line in fitted.values() for _, value in line),
        ]
    )
    dots = tuple(
        Dot(
            x.place(f.way.most),
            up(y, f.speedup.median),
            each,
            f"{each}, {counted(f.way.most, 'draft')}: {f.speedup.median:.2f}",
        )
        for each, f in found
    )
    return Plot(
        "Speedup by the number of drafts a pass",
        "; ".join(dot.title for dot in dots),
        "drafts a pass; lines: the fitted formula",
        tuple(Tick(x.place(k), str(k)) for k in report.drafts),
        ticks_up(y),
        dots=dots,
        curves=(
            curve(x, y, [(x.low, 1.0), (x.high, 1.0)], "even"),
            *(curve(x, y, points, f"fit {each}") for each, points in fitted.items()),
        ),
    )
