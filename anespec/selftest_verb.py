"""`anespec selftest`: what this machine does with packages, in a file that can be sent back."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.console import json_option, notes, out, print_json, timed_progress
from anespec.manifests.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from anespec.validate.selftest.records import SelftestReport, StepReport
    from anespec.validate.selftest.selftest import Progress

FOLDER_NAME = "selftest"
MOST_LAYERS = 32


@click.command(short_help="Find out what this machine does with packages.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.zip"),
    show_default=True,
    help="The archive to write: a page and a JSON.",
)
@click.option("--quick", is_flag=True, help="Small models and few passes: minutes, not an hour.")
@click.option("--only", metavar="STEP", multiple=True, help="Run only this step; may be given several times.")
@click.option(
    "--layers",
    type=click.IntRange(1, MOST_LAYERS),
    help="Layers of the full model.  [default: 32 where there is a Neural Engine, else 2]",
)
@click.option("--again", is_flag=True, help="Begin anew instead of going on with an interrupted run.")
@click.option("--list", "listing", is_flag=True, help="List the steps and exit.")
@json_option
def selftest(
    output: Path,
    quick: bool,
    only: tuple[str, ...],
    layers: int | None,
    again: bool,
    listing: bool,
    as_json: bool,
) -> None:
    """Find out what this machine does with packages, and what it should use.

    Random models are converted, compiled and run, each try in a process of its own: what fails, hangs or is
    killed is noted, and the rest goes on. An interrupted run goes on where it stopped. Where there is no
    Neural Engine, the portable backend takes its place, and what needs Core ML says so.

    The archive holds a page and a JSON, without names of users, machines or folders. `anespec convert
    --tuned report.zip` takes over what it recommends.

    \b
    Example:
      anespec selftest --quick
      anespec selftest -o report.zip
      anespec selftest --only kv --only states
    """
    from anespec.validate.selftest.steps import STEPS

    if listing:
        if as_json:
            print_json({"steps": [{"id": s.id, "title": s.title, "asks": s.asks} for s in STEPS]})
            return
        for step in STEPS:
            out().print(f"{step.id:<10} {step.title}. {step.asks}")
        return
    if quick and layers is not None:
        raise UsageError("--quick runs no full model, so --layers says nothing beside it")
    report = _run(quick, only, layers, again, output, as_json)
    if as_json:
        print_json(_facts(report, output))
    else:
        _show_end(report, output)


def _run(
    quick: bool, only: tuple[str, ...], layers: int | None, again: bool, output: Path, as_json: bool
) -> "SelftestReport":
    from anespec.manifests.user_folders import cache_folder, private_folder
    from anespec.validate.selftest.archive import clean, write_archive
    from anespec.validate.selftest.devices import device_here
    from anespec.validate.selftest.selftest import Selftest, chosen_scale, chosen_steps

    steps = chosen_steps(only)
    device = device_here()
    name = FOLDER_NAME if not only else "-".join((FOLDER_NAME, *(step.id for step in steps)))
    folder = cache_folder() / name
    with private_folder(folder):
        test = Selftest(
            folder, device.name, chosen_scale(quick, layers, device.engine), quick, steps, again=again
        )
    with _progress(shown=not as_json) as watch:
        try:
            report = test.run(watch, (lambda _: None) if as_json else _show_step)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what was found is kept, and the same command goes on there"
            ) from None
    report = clean(report, folder)
    write_archive(report, output)
    test.finish()
    return report


@contextlib.contextmanager
def _progress(shown: bool) -> "Iterator[Callable[[Progress], None]]":
    with timed_progress("self-test", shown) as report:

        def watch(progress: "Progress") -> None:
            note = f"{progress.step.id}: {progress.trial.name}, {progress.stage}"
            report(note, (progress.number - 1) / progress.total)

        yield watch


def _show_step(report: "StepReport") -> None:
    from anespec.validate.findings import Level

    console = out()
    console.print(f"{report.title}: {report.level}", style=STYLES[report.level.value])
    for finding in report.findings:
        if finding.level is not Level.OK:
            mend = f"; {finding.mend}" if finding.mend else ""
            console.print(f"  {finding.subject}: {finding.text}{mend}")


STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "not here": "dim"}


def _show_end(report: "SelftestReport", output: Path) -> None:
    from anespec.validate.selftest.page import choice_rows, verdict

    console = out()
    console.print()
    for finding in report.differences:
        console.print(f"{finding.subject}: {finding.text}")
    rows = choice_rows(report.choices)
    for option, value, why in rows:
        console.print(f"{option} {value}: {why}")
    if report.advice is not None:
        console.print(f"--backend {report.advice.backend}: {report.advice.because}")
    console.print(verdict(report))
    console.print(f"Written to {output}")
    if rows:
        notes().print(f"Next: anespec convert model.gguf --tuned {output}")


def _facts(report: "SelftestReport", output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        **report.model_dump(mode="json", exclude={"steps": {"__all__": {"trials"}}}),
    }
