"""Implement `anespec bench run`: measure tokens per second with and without speculation, and compare the
texts."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.cli.bench.opening import open_energy, open_source_to_measure, open_to_measure
from anespec.cli.bench.suite import measure_suite, read_suites, show_suite
from anespec.cli.console import json_option, notes, out, result_as_json, timed_progress, watcher
from anespec.cli.option_flags import flags_of, read_flags
from anespec.models.loading import costs_here
from anespec.models.model_path import ModelPath
from anespec.system.errors import ExactnessGateError, Interrupted, RequestError, StorageError, UsageError
from anespec.system.formatting import counted, duration_text
from anespec.system.safe_files import require_writable, write_atomically
from anespec.validate.bench.options import BenchOptions

if TYPE_CHECKING:
    from anespec.models.loading import OpenedModel
    from anespec.runtime.drafters import DraftSource
    from anespec.runtime.proven import Proven
    from anespec.validate.bench.energy import EnergyMeter
    from anespec.validate.bench.figures import Figures
    from anespec.validate.bench.report import BenchReport
    from anespec.validate.bench.suites.report import SuiteReport


CSV = ".csv"


@click.command(short_help="Measure speed with and without speculation.")
@click.argument("artifact", metavar="DIR", type=ModelPath())
@flags_of(BenchOptions, without=("verify", "queue", "draft_memory", "chat_template"))
@click.option(
    "suites",
    "--suite",
    multiple=True,
    metavar="NAME|FILE.toml",
    help="Run a published experiment, or one of your own: blocks, ngram, pld, uag (see `anespec bench "
    "suites`), all, or a file. May be given several times.",
)
@click.option("--quick", is_flag=True, help="With --suite: a first look, in minutes.")
@click.option(
    "--second-model",
    metavar="DIR",
    type=ModelPath(),
    help="With --suite ngram: a model of the same vocabulary, to compare a cold and a warm table.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a page with plots here.")
@json_option
def run(
    artifact: Path,
    suites: tuple[str, ...],
    quick: bool,
    second_model: Path | None,
    output: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Measure tokens per second of DIR with and without speculation, and compare the texts.

    DIR is an artifact, a GGUF or the name of a model in the cache.

    Prompts of five kinds are continued without drafts, with drafts as they pay and with 1, 2, … drafts a
    pass, in turns. Every text with speculation is compared with every one without, token by token; if one
    differs, the command names the place and fails with exit code 13.

    With --suite, the prompts and the ways of drafting are those of a published experiment. With -o, every
    run is also written to a CSV file beside the page. With several suites, -o names a folder that gets a
    page for each.

    \b
    Example:
      anespec bench run model.anespec
      anespec bench run model.anespec --classes code,edit -o bench.html
      anespec bench run model.anespec --suite pld -o pld.html
      anespec bench run model.anespec --suite all --quick -o pages
    """
    from anespec.validate.bench.report import BenchReport
    from anespec.validate.bench.runs_csv import csv_of

    options = read_flags(BenchOptions, chosen)
    if not suites and second_model is not None:
        raise UsageError("--second-model needs a suite that compares two models, such as --suite ngram")
    if not suites and quick:
        raise UsageError("--quick needs a suite, such as --suite pld")
    asked = read_suites(suites, second_model, options, quick)
    pages = _pages(output, tuple(asked) or ("",))
    reports: dict[str, BenchReport | SuiteReport] = {}
    try:
        if not suites:
            reports[""] = _measured(artifact, options, as_json)
        for name, suite in asked.items():
            try:
                reports[name] = measure_suite(artifact, name, suite, second_model, options, as_json)
            except RequestError as error:
                if name == tuple(asked)[-1] and not reports:
                    raise
                notes().print(f"note: {name} is left out: {error}")
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the measurements were not saved") from None
    for name, path in pages.items():
        try:
            if name in reports:
                write_atomically(path, _page(reports[name]))
                write_atomically(path.with_suffix(CSV), csv_of(reports[name].cases))
        except OSError as error:
            raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    facts = [report.facts() for report in reports.values()]
    with result_as_json({"suites": facts} if len(asked) > 1 else facts[0], shown=as_json):
        if not as_json:
            for report in reports.values():
                _show(report) if isinstance(report, BenchReport) else show_suite(report)
            if output is not None:
                out().print(f"\nThe plots are in {output}, and every run in a {CSV} beside.")
        for report in reports.values():
            if not report.differences:
                continue
            more = len(report.differences) - 1
            others = f", and {counted(more, 'other pair differs', 'other pairs differ')}" if more else ""
            raise ExactnessGateError(
                f"speculation changed the text: {report.differences[0]}{others}; run the exactness gate with "
                "`anespec validate --exactness`, and do not speculate here"
            )


def _pages(output: Path | None, suites: tuple[str, ...]) -> dict[str, Path]:
    """Return the page of each suite: `output`, or files of that folder if there are several.

    Raises:
        UsageError: two reports would have the same page.
        StorageError: they cannot be written.
    """
    if output is None:
        return {}
    if len(suites) < 2:
        if output.suffix == CSV:
            raise UsageError(f"-o names the page; every run is written to a {CSV} file beside it")
        require_writable(output)
        require_writable(output.with_suffix(CSV))
        return dict.fromkeys(suites, output)
    pages = {name: output / f"{Path(name).stem}.html" for name in suites}
    if len({*pages.values()}) < len(pages):
        raise UsageError("-o writes a page by each suite's name, and two have the same; rename a file")
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"{output}: cannot be made a folder ({error.strerror})") from error
    return pages


def _page(report: "BenchReport | SuiteReport") -> str:
    from anespec.validate.bench.page import render_page
    from anespec.validate.bench.report import BenchReport
    from anespec.validate.bench.suites.page import render_suite_page

    return render_page(report) if isinstance(report, BenchReport) else render_suite_page(report)


def _measured(artifact: Path, options: BenchOptions, quiet: bool) -> "BenchReport":
    watch = watcher(shown=not quiet)
    with ExitStack() as stack:
        energy = open_energy(stack, options.energy)  # before minutes of gates, since it may ask
        opened, proven = open_to_measure(stack, artifact, options, watch)
        source = open_source_to_measure(stack, options, opened, watch)
        if source is None:
            raise RequestError("without a drafter there is nothing to compare; give --drafter another name")
        return _run_cases(opened, proven, source, options, quiet, *energy)


def _run_cases(
    opened: "OpenedModel",
    proven: "Proven",
    source: "DraftSource",
    options: BenchOptions,
    quiet: bool,
    meter: "EnergyMeter | None",
    energy: str,
) -> "BenchReport":
    from anespec.runtime.backends import COREML, WORKER
    from anespec.runtime.engine.engine import Engine
    from anespec.runtime.sampling import SamplingParameters
    from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
    from anespec.runtime.speculation.running_costs import RunningCosts
    from anespec.system.machine import Surroundings
    from anespec.validate.bench.measure import Measurement, equal_costs, measure, most_drafts, usual_drafts
    from anespec.validate.bench.prompts import bench_prompts
    from anespec.validate.bench.report import BenchReport
    from anespec.validate.bench.timed_source import BoundedSource
    from anespec.validate.cost_model.forecast import compare

    shape, here = opened.verifier.shape, opened.here
    most = most_drafts(proven.widths)
    drafts = options.drafts or usual_drafts(shape.block, most)
    if not drafts or drafts[-1] > most:
        raise RequestError(
            f"a pass runs at most {counted(most, 'draft')} of a sequence here; give fewer --drafts"
            f"{', or convert with a larger --block' if most < MAX_DRAFT_LEN else ''}"
        )
    prompts = list(bench_prompts(opened.tokenizer, options.classes, shape.context - options.lengths[-1]))
    bounded = BoundedSource(source, drafts[-1])
    costs = RunningCosts(costs_here(opened, proven, watcher(shown=not quiet)))
    surroundings, began = Surroundings.here(), time.monotonic()
    measurement = Measurement(
        spending=Engine(opened.verifier, proven, bounded, costs=costs, repetition_filter=options.prompt_gate),
        fixed=Engine(opened.verifier, proven, bounded, costs=equal_costs(proven.widths), min_draft_len=most),
        source=bounded,
        sampling=SamplingParameters(temperature=options.temperature, seed=options.seed),
        end_ids=opened.tokenizer.end_ids,
        runs=options.runs,
        meter=meter,
    )
    with timed_progress("measuring", shown=not quiet) as progress:
        cases = measure(measurement, prompts, options.lengths, drafts, progress)
    on_engine = here.backend in (COREML, WORKER)
    pass_ms = 1e3 * costs.current.seconds(shape.block, shape.spans[0][-1])
    return BenchReport(
        model=opened.artifact.manifest.source.name,
        backend=here.backend,
        threads=here.threads,
        block=shape.block,
        drafter=options.drafter,
        sampling=options.sampling_text,
        runs=options.runs,
        lengths=options.lengths,
        drafts=drafts,
        costs=costs.current,
        surroundings=surroundings,
        seconds=time.monotonic() - began,
        cases=tuple(cases),
        comparison=compare(opened.artifact, surroundings.machine, pass_ms) if on_engine else None,
        energy=energy,
        draft=None if options.draft is None else str(options.draft),
    )


def _show(report: "BenchReport") -> None:
    from anespec.validate.bench.sentences import (
        comparison_sentence,
        cost_text,
        energy_sentence,
        fit_sentences,
    )

    out().print(
        f"{report.model} on {report.backend}, {counted(report.threads, 'thread')}, blocks of {report.block}, "
        f"{report.sampling}; drafts by {report.sources}. {report.surroundings}.\n"
    )
    by_class = [
        (f"{each} {length}", report.figures(each, length))
        for each in report.classes
        for length in report.lengths
    ]
    _table("drafts as they pay", "text, tokens", [*by_class, ("all", report.figures())])
    out().print()
    by_way = [
        ("as they pay" if way.as_they_pay else str(way.most), report.figures(way=way)) for way in report.ways
    ]
    _table("all texts by the number of drafts", "drafts", by_way)
    out().print()
    for sentence in (*fit_sentences(report), comparison_sentence(report)):
        out().print(sentence)
    out().print(f"A pass of {cost_text(report)}.")
    out().print(energy_sentence(report))
    if report.comparison is not None:
        out().print(str(report.comparison))
    out().print(f"Measured in {duration_text(report.seconds)}.")


def _table(title: str, first: str, rows: "list[tuple[str, Figures | None]]") -> None:
    from anespec.validate.bench.sentences import position_text

    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    table.add_column(first, no_wrap=True)
    for name in ("tokens/s\nwithout", "with", "speedup\n(range)", "tokens\nper pass", "right by\nposition"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, figures in rows:
        if figures is None:
            table.add_row(name, *("too short", "", "", "", ""))
            continue
        table.add_row(
            name,
            f"{figures.plain.median:.1f}",
            f"{figures.drafted.median:.1f}",
            str(figures.speedup),
            f"{figures.tokens_per_pass:.2f}",
            position_text(figures.shares_by_position),
        )
    out().print(table)
