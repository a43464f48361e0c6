"""Show what the results of a suite mean: how near a way came to its ceiling, waiting times, and a verdict."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from anespec.system.formatting import counted
from anespec.validate.bench.figures import Figures, Spread, figures_of
from anespec.validate.bench.measure import BenchRun, Case, Way
from anespec.validate.bench.sentences import sentence
from anespec.validate.bench.suites.report import SuiteReport
from anespec.validate.bench.suites.schema import Ways
from anespec.validate.bench.suites.tables import UNKNOWN, Shown, SuiteTable, decode_speed, label, variant_of


def scoreboard(report: SuiteReport) -> Shown:
    """Show the speedup of every way on every text, and the share of its ceiling."""
    drafted = [way for way in report.ways if way.most or way.as_they_pay]
    rows = tuple(
        (name, *(_near_ceiling(figures_of(cases, way)) for way in drafted))
        for name, cases in report.sections.items()
    )
    columns = ("text", *(label(way).replace(", ", "\n") for way in drafted))
    return Shown(
        (SuiteTable("Speedup, and the share of its ceiling", columns, rows),),
        sentences=(
            "The ceiling is the tokens per pass: what the drafts would bring if a pass with them took no "
            "longer than one without.",
        ),
    )


def _near_ceiling(figures: Figures | None) -> str:
    if figures is None:
        return UNKNOWN
    speedup = figures.speedup.median
    return f"{speedup:.2f} ({speedup / figures.tokens_per_pass:.0%} of {figures.tokens_per_pass:.2f})"


def waits(report: SuiteReport) -> Shown:
    """Show the seconds to the first token and of a whole request, each with the spread of its runs."""
    seconds: tuple[tuple[str, Callable[[BenchRun], float]], ...] = (
        ("Seconds to the first token (range)", lambda run: run.statistics.prefill_seconds),
        (
            "Seconds of a whole request (range)",
            lambda run: run.statistics.prefill_seconds + run.statistics.decode_seconds,
        ),
    )
    ways = (report.baseline, *report.ways)
    columns = ("text", *(label(way).replace(", ", "\n") for way in ways))

    def cells(cases: Sequence[Case], of: Callable[[BenchRun], float]) -> Iterator[str]:
        for way in ways:
            yield str(Spread(tuple(of(run) for case in cases for run in variant_of(case, way).runs)))

    return Shown(
        tuple(
            SuiteTable(
                title,
                columns,
                tuple((name, *cells(cases, of)) for name, cases in report.sections.items()),
            )
            for title, of in seconds
        )
    )


def verdict(report: SuiteReport) -> Shown:
    """Say which way is the fastest of all texts, and how to have it; or that none pays here."""
    return Shown(sentences=tuple(map(sentence, _verdict(report))))


def _verdict(report: SuiteReport) -> Iterator[str]:
    ways = {each.name: each for each in report.suite.ways}
    usable = [
        way
        for way in report.ways
        if way.as_they_pay or (way.most and not ways[way.name].perfect and not ways[way.name].as_they_pay)
    ]
    timed = [(way, f) for way in usable if (f := figures_of(report.cases, way)) is not None]
    if usable and not timed:
        yield "no text is long enough to be timed; give a larger output_tokens, or prompts that ask for more"
    if timed:
        way, best = max(timed, key=lambda pair: pair[1].speedup.median)
        speedup = best.speedup
        runs = f"runs: {speedup.least:.2f} to {speedup.most:.2f}"
        figures = f"{speedup.median:.2f} times as fast as without drafts ({runs})"
        if speedup.median <= 1:
            yield f"no way pays on these texts here; the best, {label(way)}, is {figures}: use --drafter none"
        else:
            yield f"the fastest way over all texts is {label(way)}, {figures}: use {_flags(ways[way.name])}"
            if not way.as_they_pay:
                yield "served, it runs as many drafts as pay, which may be more or fewer"
            if len(speedup.values) == 1:
                yield "there was one run, which has no spread; give --runs 3 before it decides anything"
            elif speedup.least <= 1:
                yield "its runs do not all gain, so another measurement may end otherwise; give more --runs"
    yield from (_break_even(report, way) for way in report.ways if ways[way.name].width and not way.most)


def _flags(way: Ways) -> str:
    given = {"drafter": "auto", **way.options}
    if way.draft_model:
        given = {"draft": "MODEL", **way.options, "drafter": "model"}
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in given.items())


def _break_even(report: SuiteReport, plain: Way) -> str:
    """Say how many right drafts a pass of the baseline's width must bring to pay."""
    speeds = [(decode_speed(case, plain), decode_speed(case, report.baseline)) for case in report.cases]
    ratios = [narrow / wide for narrow, wide in speeds if narrow and wide]
    if not ratios:
        return "the texts are too short to say what a wider pass costs; give longer ones"
    cost = median(ratios)
    if cost <= 1:
        return (
            f"a pass of {report.baseline.name} takes no longer than one of {plain.name}, so every right "
            "draft pays"
        )
    right, most = max(0.0, cost - 1), max(way.most for way in report.ways)
    return (
        f"a pass of {report.baseline.name} takes {cost:.2f} times as long as one of {plain.name}, so drafts "
        f"pay from {right:.2f} right ones a pass on, of {counted(most, 'draft')}"
    )
