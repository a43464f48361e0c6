"""Implement `anespec selftest`: test how this machine handles packages, and write a report to send back."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from pydantic import BeforeValidator, Field
from rich.console import Console
from rich.table import Table

from anespec.cli.console import json_option, notes, out, print_json, timed_progress
from anespec.cli.option_flags import SIZE, Parsed
from anespec.system.errors import Interrupted, UsageError
from anespec.system.formatting import duration_text
from anespec.system.options import read_size

if TYPE_CHECKING:
    from anespec.validate.selftest.course import Progress
    from anespec.validate.selftest.records import SelftestReport, StepReport
    from anespec.validate.selftest.steps.step import Step

FOLDER_NAME = "selftest"
MOST_LAYERS = 32


@click.command(short_help="Test how this machine handles packages.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive to write: a page and a JSON.  [default: report.zip; report-quick.zip with "
    "--quick, report-STEP.zip with --only]",
)
@click.option("--quick", is_flag=True, help="Small models and few passes: some minutes.")
@click.option(
    "--only",
    metavar="STEP",
    multiple=True,
    help="Run only this step, as --list names it; may be given several times.",
)
@click.option(
    "--layers",
    type=click.IntRange(1, MOST_LAYERS),
    help="Layers of the full model.  [default: 32 where there is a Neural Engine, else 2]",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE.gguf",
    help="Try the first layers of this model, too: trained weights may be slower than random ones.",
)
@click.option(
    "--cache-limit",
    type=Parsed(Annotated[int, BeforeValidator(read_size), Field(ge=1)], SIZE),
    help="End the run, with the results so far, once the system's own caches have taken this much disk.  "
    "[default: 60GB]",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Print a line for each trial, with the estimated time left.",
)
@click.option("--again", is_flag=True, help="Start over instead of resuming an interrupted run.")
@click.option("--core-ml", is_flag=True, help="Ask Core ML also on a Mac without a Neural Engine.")
@click.option("--list", "listing", is_flag=True, help="List the steps and exit.")
@json_option
def selftest(
    output: Path | None,
    quick: bool,
    only: tuple[str, ...],
    layers: int | None,
    model: Path | None,
    cache_limit: int | None,
    watch: bool,
    again: bool,
    core_ml: bool,
    listing: bool,
    as_json: bool,
) -> None:
    """Test how this machine handles packages, and recommend options for it.

    Random models are converted, compiled and run, each trial in a separate process: a trial that fails, hangs
    or is killed is recorded, and the others continue. An interrupted run resumes where it stopped. Without a
    Neural Engine, the portable backend takes its place, and steps that need Core ML report so; with --core-ml
    on such a Mac, a virtual machine for example, Core ML is asked, which runs on the CPU then.

    The archive holds a page and a JSON, without names of users, machines or folders. `anespec convert --tuned
    report.zip` uses its recommendations.

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
        _show_steps(STEPS)
        return
    if quick and layers is not None:
        raise UsageError("--quick runs no full model, so --layers has no effect; leave one of them out")
    target = output or default_output(quick, only)
    report = _run(
        _RunOptions(quick, only, layers, again, model, cache_limit, watch, core_ml, as_json), target
    )
    if as_json:
        print_json(_facts(report, target))
    else:
        _show_end(report, target)


def _show_steps(steps: "Iterable[Step]") -> None:
    """Show a line per step, wrapped next to the step's name in a terminal."""
    console = out()
    table = Table.grid(padding=(0, 2))
    for step in steps:
        table.add_row(step.id, f"{step.title}. {step.asks}")
        if not console.is_terminal:
            console.print(f"{step.id:<10} {step.title}. {step.asks}")
    if console.is_terminal:
        console.print(table)


def default_output(quick: bool, only: tuple[str, ...]) -> Path:
    """Return the report's name; each kind of run has its own, so that a short run does not replace a full
    report."""
    return Path(f"{_named('report', quick, only)}.zip")


def _named(begin: str, quick: bool, steps: Iterable[str]) -> str:
    """Return the base name; quick runs and runs of selected steps have their own suffix."""
    return "-".join((begin, *dict.fromkeys(steps), *(["quick"] if quick else [])))


@dataclass(frozen=True)
class _RunOptions:
    """The options of a run, as given."""

    quick: bool
    only: tuple[str, ...]
    layers: int | None
    again: bool
    model: Path | None
    cache_limit: int | None
    watch: bool
    core_ml: bool
    as_json: bool


def _run(asked: _RunOptions, output: Path) -> "SelftestReport":
    from anespec.embedded import model_path
    from anespec.system.interrupts import ends_as_interrupts
    from anespec.system.packages import require_package
    from anespec.system.safe_files import require_writable
    from anespec.system.user_folders import cache_folder, private_folder
    from anespec.validate.selftest.archive import clean, write_archive
    from anespec.validate.selftest.devices.choosing import device_here
    from anespec.validate.selftest.disk import CACHE_LIMIT
    from anespec.validate.selftest.inputs.trained import with_trained
    from anespec.validate.selftest.selftest import Selftest, chosen_scale, chosen_steps

    quick, steps = asked.quick, chosen_steps(asked.only)
    require_writable(output)
    require_package("torch", "what the self-test compares with")
    device = device_here(asked.core_ml)
    scale = with_trained(chosen_scale(quick, asked.layers, device.engine), model_path(), asked.model)
    # Otherwise a quick run would remove the results of an interrupted full run.
    folder = cache_folder() / _named(FOLDER_NAME, quick, (step.id for step in steps) if asked.only else ())
    with ends_as_interrupts(), private_folder(folder) as held, held.alone("another self-test"):
        test = Selftest(
            folder,
            device.name,
            scale,
            quick,
            steps,
            again=asked.again,
            cache_limit=asked.cache_limit or CACHE_LIMIT,
        )
        with timed_progress("self-test", shown=not (asked.as_json or asked.watch)) as shown:
            lines = _Lines(shown.notes)

            def watch(progress: "Progress") -> None:
                shown(_note(progress), (progress.number - 1) / progress.total)
                if asked.watch:
                    lines.show(progress)

            try:
                report = test.run(
                    watch,
                    (lambda _: None) if asked.as_json else (lambda step: _show_step(step, shown.results)),
                    lambda kept, total: shown.notes.print(
                        f"note: continuing an interrupted run: {kept} of its {total} trials are done "
                        "(--again starts over)",
                        style="yellow",
                    ),
                )
            except KeyboardInterrupt:
                raise Interrupted(
                    "interrupted; the results are kept, and the same command continues there"
                ) from None
        report = clean(report, folder)
        write_archive(report, output)
        test.finish()
    return report


def _note(progress: "Progress") -> str:
    return f"{progress.step.id}: {progress.trial.name}, {progress.stage}"


class _Lines:
    """Progress as a line for each trial."""

    def __init__(self, console: Console) -> None:
        self._console, self._number = console, 0

    def show(self, progress: "Progress") -> None:
        """Print a line if another trial began."""
        if progress.number == self._number:
            return
        self._number = progress.number
        left = "" if progress.left is None else f", about {duration_text(progress.left)} left"
        self._console.print(
            f"{progress.number} of {progress.total}, {progress.step.id}: {progress.trial.name} "
            f"({duration_text(progress.spent)} so far{left})"
        )


def _show_step(report: "StepReport", console: Console) -> None:
    from anespec.validate.findings import Level

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
    if report.loading is not None:
        console.print(f"--worker-loading {report.loading.loading}: {report.loading.because}")
    console.print(verdict(report))
    console.print(f"Written to {output}")
    if rows:
        notes().print(f"Next: anespec convert model.gguf --tuned {output}")


def _facts(report: "SelftestReport", output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        **report.model_dump(mode="json", exclude={"steps": {"__all__": {"trials"}}}),
    }
