"""Show the results of a suite: each view is a function from the report to tables, plots and sentences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, median

from anespec.system.formatting import counted, listed
from anespec.validate.bench.figures import Figures, figures_of
from anespec.validate.bench.measure import Case, Way
from anespec.validate.bench.plots import Series, series_plot
from anespec.validate.bench.sentences import (
    INTERVAL,
    acceptance_text,
    cost_sentence,
    line_sentence,
    sentence,
)
from anespec.validate.bench.suites import overview
from anespec.validate.bench.suites.report import SuiteReport
from anespec.validate.bench.suites.schema import View
from anespec.validate.bench.suites.tables import (
    UNKNOWN,
    Shown,
    SuiteTable,
    best_of,
    decode_speed,
    label,
    names_of,
    share_text,
    variant_of,
)
from anespec.validate.bench.suites.verdicts import scoreboard, verdict, waits

SHOWN_DRAFTS = 8
"""The most positions of a draft in a table; JSON has all."""


def _speed(report: SuiteReport) -> Shown:
    energy = any(
        f.plain_joules is not None for cases in report.sections.values() for f in _figures(report, cases)
    )
    columns = ("way", "tokens/s", "speedup (range)", "tokens\nper pass", "right of\ndrafts run")
    tables = []
    for name, cases in report.sections.items():
        rows: list[tuple[str, ...]] = []
        figures = _figures(report, cases)
        for f in figures:
            if not rows:
                joules = "" if f.plain_joules is None else f"{f.plain_joules.median:.3g}"
                rows.append((report.baseline.name, f"{f.plain.median:.1f}", "1", "1.00", UNKNOWN, joules))
            rows.append(
                (
                    label(f.way),
                    f"{f.drafted.median:.1f}",
                    str(f.speedup),
                    f"{f.tokens_per_pass:.2f}",
                    share_text(f),
                    "" if f.drafted_joules is None else f"{f.drafted_joules.median:.3g}",
                )
            )
        tables.append(
            SuiteTable(
                name,
                (*columns, "joules\na token") if energy else columns,
                tuple(row if energy else row[:-1] for row in rows) or (("too short to be timed",),),
            )
        )
    return Shown(tuple(tables), sentences=() if energy else (sentence(report.energy),))


def _figures(report: SuiteReport, cases: Sequence[Case]) -> list[Figures]:
    return [f for way in report.ways if (f := figures_of(cases, way)) is not None]


def _parity(report: SuiteReport) -> Shown:
    rows = []
    for name, cases in report.sections.items():
        texts = {len(case.plain.runs) * (1 + len(case.compared)) for case in cases}
        tokens = sum(len(case.plain.runs[0].ids) for case in cases)
        wrong = sum(len({(d.way, d.run) for d in case.differences}) for case in cases)
        rows.append(
            (
                name,
                str(len(cases)),
                str(max(texts)),
                str(tokens),
                "all equal" if not wrong else f"{counted(wrong, 'text')} differ",
            )
        )
    columns = ("text", "prompts", "texts of\na prompt", "tokens", "token by token")
    ways, runs = 1 + sum(not way.other_bits for way in report.ways), report.suite.runs
    return Shown(
        (SuiteTable("The same text", columns, tuple(rows)),),
        sentences=(
            f"Each prompt was continued {counted(runs, 'time')} in each of {counted(ways, 'way')}; "
            f"all {runs * ways} texts must be equal.",
        ),
    )


def _positions(report: SuiteReport) -> Shown:
    rows = []
    longest = 0
    for name, cases in report.sections.items():
        for f in _figures(report, cases):
            shares = f.shares_by_position[:SHOWN_DRAFTS]
            longest = max(longest, len(shares))
            rows.append((name, label(f.way), *(f"{share:.0%}" for share in shares)))
    padded = tuple((*row, *("" for _ in range(longest + 2 - len(row)))) for row in rows)
    columns = ("text", "way", *(str(place) for place in range(1, longest + 1)))
    plots = []
    for name in names_of(report.ways):
        most = max((way for way in report.ways if way.name == name), key=lambda way: way.most)
        series = [
            Series(
                section,
                tuple((place, share) for place, share in enumerate(found.shares_by_position, start=1)),
            )
            for section, cases in report.sections.items()
            if (found := figures_of(cases, most)) is not None and found.shares_by_position
        ]
        title = f"Right drafts by their position, {label(most)}"
        plots.append(series_plot(title, "position in the draft", series, y_percent=True, y_shown=(0.0, 1.0)))
    table = SuiteTable("Right drafts by their position in the draft", columns, padded, names=2)
    return Shown((table,), tuple(plots))


def _drafts(report: SuiteReport) -> Shown:
    fixed = [way for way in report.ways if way.most and not way.as_they_pay]
    tables, plots = [], []
    for section, cases in report.classes.items():
        names = names_of(fixed)
        found = {(way.name, way.most): figures_of(cases, way) for way in fixed}
        rows = tuple(
            (
                str(k),
                *(
                    f"{f.speedup.median:.2f}" if (f := found.get((name, k))) is not None else UNKNOWN
                    for name in names
                ),
            )
            for k in report.counts
        )
        title = f"Speedup by the number of drafts (k), {section}"
        tables.append(SuiteTable(title, ("k", *names), rows))
        series = [
            Series(
                name,
                tuple(
                    (k, f.speedup.median) for k in report.counts if (f := found.get((name, k))) is not None
                ),
            )
            for name in names
        ]
        plots.append(series_plot(title, "drafts a pass", series, y_shown=(1.0,)))
    return Shown(tuple(tables), tuple(plots))


def _turns(report: SuiteReport) -> Shown:
    """Show each turn of the conversations, with the number of drafts that is best in the whole one."""
    tables, plots = [], []
    for talk, cases in report.talks.items():
        names = names_of(report.ways)
        best = [found[0] for name in names if (found := best_of(report.ways, name, cases)) is not None]
        rows, series = [], {way: list[tuple[float, float]]() for way in best}
        for turn, case in enumerate(cases, start=1):
            figures = {way: f for way in best if (f := figures_of([case], way)) is not None}
            for way, f in figures.items():
                series[way].append((turn, f.tokens_per_pass))
            cells = (
                UNKNOWN
                if (f := figures.get(way)) is None
                else f"{f.speedup.median:.2f} ({f.tokens_per_pass:.2f})"
                for way in best
            )
            plain = median(run.speed for run in case.plain.runs)
            rows.append((str(turn), str(len(case.prompt.ids)), f"{plain:.1f}", *cells))
        columns = ("turn", "prompt", "tokens/s\nwithout", *(label(way).replace(", ", "\n") for way in best))
        title = f"Speedup (tokens per pass) by turn, {talk}"
        tables.append(SuiteTable(title, columns, tuple(rows)))
        lines = [Series(label(way), tuple(points)) for way, points in series.items()]
        plots.append(series_plot(f"Tokens per pass by turn, {talk}", "turn", lines, y_shown=(1.0,)))
    return Shown(tuple(tables), tuple(plots))


def _occupancy(report: SuiteReport) -> Shown:
    """Show the use of the tables by the ways with the most drafts."""
    uses = report.measured.tables
    most = {
        name: max(use.way.most for use in uses if use.way.name == name)
        for name in names_of([use.way for use in uses])
    }
    rows = tuple(
        (
            use.prompt.group,
            label(use.way),
            f"{use.facts.filled:,}",
            f"{use.facts.occupancy:.3%}",
            str(use.facts.emptied),
        )
        for use in uses
        if use.way.most == most[use.way.name]
    )
    if not rows:
        return Shown(sentences=("No way of this suite has a table.",))
    entries = uses[0].facts.entries
    title = f"Use of the table's {entries:,} entries after each text"
    sentences = [
        f"With {label(each.way)}, a table of {each.entries:,} entries needs as few passes for these texts as "
        f"one of {each.whole:,}: {each.passes:,}."
        for each in report.measured.sizes
    ]
    table = SuiteTable(title, ("text", "way", "entries", "share", "emptied"), rows, names=2)
    return Shown((table,), sentences=tuple(sentences))


def _warm(report: SuiteReport) -> Shown:
    if report.second is None:
        return Shown(
            sentences=(
                "A cold and a warm table are compared with `--second-model DIR`: a model of the same "
                "vocabulary, which then drafts from this one's texts.",
            )
        )
    cases = report.second.measured.cases
    cold, warm = (each.way for each in cases[0].drafted)
    rows = []
    for case in cases:
        both = [figures_of([case], way) for way in (cold, warm)]
        cells = (
            text
            for f in both
            for text in (
                (f"{f.drafted.median:.1f}", f"{f.tokens_per_pass:.2f}", f"{f.speedup.median:.2f}")
                if f is not None
                else (UNKNOWN,) * 3
            )
        )
        rows.append((case.prompt.group, *cells))
    columns = (
        "text",
        *(f"{start}\n{name}" for start in ("cold", "warm") for name in ("tokens/s", "per pass", "speedup")),
    )
    title = f"{report.second.model}, {cold}: a cold table, and one warmed by {report.model}"
    series = [
        Series(
            way.name,
            tuple(
                (number, f.tokens_per_pass)
                for number, case in enumerate(cases, start=1)
                if (f := figures_of([case], way)) is not None
            ),
        )
        for way in (cold, warm)
    ]
    plot = series_plot("Tokens per pass, cold and warm", "text", series, y_shown=(1.0,))
    return Shown((SuiteTable(title, columns, tuple(rows)),), (plot,))


def _fits(report: SuiteReport) -> Shown:
    rows = []
    series = []
    for k in report.counts:
        points = [point for point in report.points if point.drafts == k]
        if not points:
            continue
        line = next((each for each in report.lines if each.drafts == k), None)
        even = None if line is None else line.break_even
        limits = UNKNOWN
        if even is not None and even.low is not None and even.high is not None:
            limits = f"{acceptance_text(even.low)} to {acceptance_text(even.high)}"
        rows.append(
            (
                str(k),
                str(len(points)),
                f"{mean(point.acceptance for point in points):.1%}",
                f"{mean(point.speedup for point in points):.2f}",
                UNKNOWN if even is None else acceptance_text(even.value),
                limits,
                UNKNOWN if report.cost is None else acceptance_text(report.cost.break_even(k)),
            )
        )
        series.append(
            Series(
                f"k {k}",
                tuple((point.acceptance, point.speedup) for point in points),
                joined=False,
                line=() if line is None else tuple((a, line.at(a)) for a in line.acceptances),
            )
        )
    columns = (
        "k",
        "texts",
        "mean\nacceptance",
        "mean\nspeedup",
        "break-even",
        f"{INTERVAL}\ninterval",
        "break-even by\nthe formula",
    )
    title = "Speedup against acceptance, by ordinary least squares"
    sentences = [line_sentence(line) for line in report.lines]
    sentences += [cost_sentence(report.cost)] if report.cost is not None else []
    return Shown(
        (SuiteTable(title, columns, tuple(rows)),) if rows else (),
        (series_plot(title, "acceptance", series, x_percent=True, y_shown=(1.0,)),),
        tuple(sentences) or ("There are too few texts for a fit; give more prompts, or longer ones.",),
    )


def _lengths(report: SuiteReport) -> Shown:
    """Show the speed of prefill and of decoding by the length of the prompt."""
    ways = (report.baseline, *report.ways)
    columns = ("prompt", *(label(way).replace(", ", "\n") for way in ways))
    speeds: tuple[tuple[str, Callable[[Case, Way], float | None]], ...] = (
        ("Prefill", _prefill_speed),
        ("Decoding", decode_speed),
    )
    tables, plots = [], []
    for noun, speed in speeds:
        found: dict[Way, list[tuple[float, float]]] = {way: [] for way in ways}
        rows = []
        for name, cases in report.sections.items():
            cells = []
            for way in ways:
                values = [value for case in cases if (value := speed(case, way)) is not None]
                cells.append(f"{median(values):.1f}" if values else UNKNOWN)
                if values:
                    found[way].append((len(cases[0].prompt.ids), median(values)))
            rows.append((name, *cells))
        title = f"{noun}, tokens per second"
        tables.append(SuiteTable(title, columns, tuple(rows)))
        series = [Series(label(way), tuple(points)) for way, points in found.items()]
        plots.append(series_plot(title, "tokens of the prompt", series, y_shown=(0.0,)))
    return Shown(tuple(tables), tuple(plots), tuple(_ceilings(report, ways)))


def _ceilings(report: SuiteReport, ways: Sequence[Way]) -> Iterator[str]:
    """Yield how much faster perfect drafts are than passes without drafts."""
    names = [each.name for each in report.suite.ways if each.perfect]
    for way in ways:
        if way.name not in names:
            continue
        compared = []
        for plain in (each for each in ways if not each.most):
            pairs = [(decode_speed(case, way), decode_speed(case, plain)) for case in report.cases]
            ratios = [one / other for one, other in pairs if one and other]
            compared += [f"{median(ratios):.2f} times as fast as {plain.name}"] if ratios else []
        if compared:
            yield (
                f"With {counted(way.most, 'perfect draft')} a pass decoding is {listed(compared)}, the "
                "median over the prompts: no drafter can bring more."
            )


def _prefill_speed(case: Case, way: Way) -> float | None:
    """Return the prompt's tokens per second up to the first token of output."""
    costs = [run.statistics for run in variant_of(case, way).runs]
    return median((cost.prompt_tokens - cost.reused_tokens) / cost.prefill_seconds for cost in costs)


def _starts(report: SuiteReport) -> Shown:
    starts = report.starts
    loading = SuiteTable(
        "Starting",
        ("start", "shards\nloaded (s)"),
        tuple((each.name, f"{each.load_seconds:.2f}") for each in starts),
    )
    seconds = [dict(each.first_passes) for each in starts]
    rows = tuple(
        (str(width), *(f"{own[width]:.3f}" if width in own else UNKNOWN for own in seconds))
        for width in sorted({width for own in seconds for width in own})
    )
    names = (each.name.replace(": ", ":\n").replace(", ", ",\n") for each in starts)
    first = SuiteTable("First pass of a width (s)", ("rows", *names), rows)
    is_cold_known = any(each.name.startswith("cold") for each in starts)
    sentences = (
        ()
        if is_cold_known
        else (
            f"No cold start is recorded on {report.backend}: Core ML alone compiles shards when they are "
            "loaded first.",
        )
    )
    return Shown((loading, first), sentences=sentences)


def _published(report: SuiteReport) -> Shown:
    nothing = "nothing is published that this suite could be put beside"
    found = [f"published: {each}" for each in report.suite.published] or [nothing]
    return Shown(sentences=tuple(map(sentence, found)))


_VIEWS: Mapping[View, Callable[[SuiteReport], Shown]] = {
    View.TEXTS: overview.texts,
    View.WAYS: overview.ways,
    View.COSTS: overview.costs,
    View.SPEED: _speed,
    View.PARITY: _parity,
    View.POSITIONS: _positions,
    View.DRAFTS: _drafts,
    View.TURNS: _turns,
    View.OCCUPANCY: _occupancy,
    View.WARM: _warm,
    View.FITS: _fits,
    View.LENGTHS: _lengths,
    View.STARTS: _starts,
    View.SCOREBOARD: scoreboard,
    View.WAITS: waits,
    View.VERDICT: verdict,
    View.PUBLISHED: _published,
}


def show(report: SuiteReport) -> list[Shown]:
    """Return the views that the suite asks for, in its order."""
    return [_VIEWS[view](report) for view in report.suite.views]
