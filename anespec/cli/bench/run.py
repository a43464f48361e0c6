"""Implement `anespec bench run`: measure tokens per second with and without speculation, and compare the
texts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.cli.bench.suite import measure_suite, read_suites, show_suite
from anespec.cli.console import json_option, notes, out, result_as_json
from anespec.cli.option_flags import flags_of, read_flags
from anespec.models.model_path import ModelPath
from anespec.system.errors import ExactnessGateError, Interrupted, RequestError, StorageError, UsageError
from anespec.system.formatting import counted
from anespec.system.safe_files import require_writable, write_atomically
from anespec.validate.bench.options import BenchOptions

if TYPE_CHECKING:
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
    help="Run an experiment, or one of your own: standard (the default), blocks, ngram, pld, uag (see "
    "`anespec bench suites`), all, or a file. May be given several times.",
)
@click.option("--quick", is_flag=True, help="A first look, in minutes.")
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
    from anespec.validate.bench.runs_csv import csv_of
    from anespec.validate.bench.suites.page import render_suite_page

    options = read_flags(BenchOptions, chosen)
    asked = read_suites(suites, second_model, options, quick)
    pages = _pages(output, tuple(asked))
    reports: dict[str, SuiteReport] = {}
    try:
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
                write_atomically(path, render_suite_page(reports[name]))
                write_atomically(path.with_suffix(CSV), csv_of(reports[name].cases))
        except OSError as error:
            raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    facts = [report.facts() for report in reports.values()]
    with result_as_json({"suites": facts} if len(asked) > 1 else facts[0], shown=as_json):
        if not as_json:
            for report in reports.values():
                show_suite(report)
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
        raise StorageError(
            f"{output}: cannot be made a folder, which the pages of several suites need ({error.strerror})"
        ) from error
    return pages
