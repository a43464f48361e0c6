"""Print the output of verbs: results to standard output, progress and notes to standard error, or JSON."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
)
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from anespec.cli.log_file import NOTE_LOG
from anespec.cli.word_wrap import wrapped
from anespec.system.errors import AnespecError, Interrupted, UsageError
from anespec.system.formatting import bytes_text, duration_text, sanitize_terminal
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.system.progress import StepReport

QUIET = "anespec.quiet"
"""The key of -q in the metadata of click's context."""


def is_quiet() -> bool:
    """Return whether the running command has -q, which omits notes and progress."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


SECONDS_BETWEEN_LINES = 10.0
"""Seconds between lines of progress if standard error is not a terminal."""

LEAST_SHARE = 1 / 20
"""The least share done from which the remaining time is estimated. The first step, opening a large model, is
the longest."""


class ElapsedColumn(ProgressColumn):
    """A column with the elapsed time."""

    def render(self, task: Task) -> Text:
        return Text(duration_text(task.elapsed or 0.0))


class TimesColumn(ProgressColumn):
    """A column with the elapsed time, and the remaining time if it is known, e.g. `1:20  0:45 left`.

    Its width is the same with and without an estimate, so that the bar beside it does not move.
    """

    def render(self, task: Task) -> Text:
        elapsed, left = _clock(task.elapsed or 0.0), task.time_remaining
        return Text(f"{elapsed:>5} {'' if left is None else f'{_clock(left)} left':>10}")


def _clock(seconds: float) -> str:
    """Return a time span in few characters: `0:07`, `12:30`, `1h05`, `26h`."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    hours = whole // 3600
    return f"{hours}h{whole % 3600 // 60:02}" if hours < 10 else f"{hours}h"


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


class _EscapingConsole(Console):
    """A console that escapes control characters in names and texts from files.

    On a terminal, the lines of a str are wrapped between words, since a terminal breaks long lines anywhere.
    A Text is not wrapped: it may be a part of a model's output.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, with str objects escaped and wrapped."""
        width = self.width if self.is_terminal else None
        shown = (wrapped(each, width) if isinstance(each, str) and width else each for each in objects)
        super().print(*shown, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=sanitize_terminal(segment.text))


def out() -> Console:
    """Return the console for results: standard output."""
    return _EscapingConsole(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)


def notes() -> Console:
    """Return the console for progress and notes: standard error.

    It is bound to the current stream, so a later redirection does not affect it. With -q it drops everything.
    """
    return _standard_error(is_quiet())


def aside() -> Console:
    """Return the console for requested output that is not a result: standard error, also with -q."""
    return _standard_error(False)


def _standard_error(quiet: bool) -> Console:
    return _EscapingConsole(file=sys.stderr, quiet=quiet, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print an object as one line of JSON on standard output, in ASCII, so that any encoding can carry it."""
    click.echo(json.dumps(value))


def confirm_removal(question: str) -> None:
    """Ask for confirmation on standard error.

    Raises:
        Interrupted: the answer is no.
        UsageError: standard input has ended, so nobody can answer.
    """
    try:
        if not click.confirm(question, err=True):
            raise Interrupted("nothing was removed")
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise UsageError(
            "there is no answer on standard input; pass --yes to remove without asking"
        ) from None


@contextlib.contextmanager
def result_as_json(facts: Mapping[str, Any], shown: bool) -> Iterator[None]:
    """Print `facts` if the block succeeds; if it fails, add them to the JSON object of the error."""
    try:
        yield
    except AnespecError as error:
        error.facts = facts
        raise
    if shown:
        print_json(facts)


@contextlib.contextmanager
def byte_progress(title: str, total: int, shown: bool) -> Iterator[Callable[[str | None, int], None]]:
    """Show progress over bytes; yield a function to call with a note (None: the last one) and the bytes
    done."""
    with timed_progress(title, shown, announced=False) as report:
        last = ""

        def update(note: str | None, done: int) -> None:
            nonlocal last
            last = last if note is None else f", {note}"
            report(f"{bytes_text(done)} of {bytes_text(total)}{last}", done / total if total else None)

        yield update


@contextlib.contextmanager
def step_progress(title: str, shown: bool) -> "Iterator[StepReport]":
    """Show a spinner with the elapsed time, for work of unknown length; yield a function to call with each
    step."""
    text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    with _progress(SpinnerColumn(), text, ElapsedColumn(), shown=shown, expand=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda note: progress.update(task, description=f"{title}: {note}")


class TimedReport:
    """The reporter of long work: call it with the current step and, if it is known, the share done.

    Early results are printed to `results`, and notes to `notes`. If these are the terminal of the progress
    bar, the texts appear above the bar, which would break otherwise.
    """

    def __init__(self, update: Callable[[str, float | None], None], results: Console, notes: Console) -> None:
        """`update` shows the step and the share."""
        self._update = update
        self.results = results
        self.notes = notes

    def __call__(self, note: str, share: float | None = None, /) -> None:
        """Show the current step and the share done."""
        self._update(note, share)

    def note(self, text: str) -> None:
        """Print a note, independently of the progress bar."""
        NOTE_LOG.info("%s", text)
        self.notes.print(f"note: {text}", style="yellow")


@contextlib.contextmanager
def timed_progress(title: str, shown: bool, announced: bool = True) -> Iterator[TimedReport]:
    """Show the elapsed and remaining time of long work; yield its reporter.

    On a terminal this is a bar that disappears at the end of the block. Elsewhere it is a plain line at the
    beginning, if `announced`, and then at most one line every SECONDS_BETWEEN_LINES.
    """
    console = notes()
    if not shown or console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            BarColumn(bar_width=10), TaskProgressColumn(), TimesColumn(),
        )  # fmt: skip
        with _progress(*columns, shown=shown, expand=True) as progress:
            task = progress.add_task(title, total=None)

            def update(note: str, share: float | None) -> None:
                total = None if share is None else 1.0
                progress.update(task, description=f"{title}: {note}", total=total, completed=share)

            same = not progress.disable and sys.stdout.isatty()
            yield TimedReport(update, progress.console if same else out(), progress.console)
        return
    lines = _PlainLines(title, console)
    if announced:
        console.print(f"{title}: running")
    yield TimedReport(lines.report, out(), console)


def watcher(shown: bool) -> ProgressCallbacks:
    """Return callbacks that print notes, and show progress if `shown` is True."""

    def note(text: str) -> None:
        NOTE_LOG.info("%s", text)
        notes().print(f"note: {text}", style="yellow")

    return ProgressCallbacks(
        note=note,
        steps=lambda title: step_progress(title, shown),
        shares=lambda title: timed_progress(title, shown),
    )


class _PlainLines:
    """Progress as plain lines, for standard error that is not a terminal."""

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = title, console
        self.started = self.last = time.monotonic()

    def report(self, note: str, share: float | None) -> None:
        """Print a line, unless the last one is less than SECONDS_BETWEEN_LINES old."""
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last, elapsed = now, now - self.started
        left = ""
        if share is not None and share >= LEAST_SHARE:
            left = f", about {duration_text(elapsed / share - elapsed)} left"
        self.console.print(f"{self.title}: {note}, after {duration_text(elapsed)}{left}")


def _progress(*columns: ProgressColumn, shown: bool, expand: bool = False) -> Progress:
    """Return a display that only a terminal shows, and that disappears at the end."""
    console = notes()
    return Progress(
        *columns,
        console=console,
        transient=True,
        expand=expand,
        disable=not (shown and console.is_terminal),
    )
