"""The output of verbs: tables and text on standard output, progress on standard error, or one JSON object."""

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

from anespec.cli.log_file import SAID
from anespec.cli.word_wrap import wrapped
from anespec.system.errors import AnespecError, Interrupted, UsageError
from anespec.system.formatting import bytes_text, duration_text, sanitize_terminal
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.system.progress import StepReport

QUIET = "anespec.quiet"
"""The key of the command line's context."""


def is_quiet() -> bool:
    """Return whether the running command was asked to omit notes and progress."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


SECONDS_BETWEEN_LINES = 10.0
"""Seconds between lines of progress if standard error is not a terminal."""

LEAST_SHARE = 1 / 20
"""No remaining time is worked out from less: opening a large model is one step of many, and the longest."""


class ElapsedColumn(ProgressColumn):
    """The elapsed time."""

    def render(self, task: Task) -> Text:
        return Text(duration_text(task.elapsed or 0.0))


class TimesColumn(ProgressColumn):
    """The elapsed time, and the remaining time if it is known, as in `1:20  0:45 left`.

    The text is as wide with an estimate as without, so that the bar next to it does not move.
    """

    def render(self, task: Task) -> Text:
        elapsed, left = _clock(task.elapsed or 0.0), task.time_remaining
        return Text(f"{elapsed:>5} {'' if left is None else f'{_clock(left)} left':>10}")


def _clock(seconds: float) -> str:
    """A time span in few characters: `0:07`, `12:30`, `1h05`, `26h`."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    hours = whole // 3600
    return f"{hours}h{whole % 3600 // 60:02}" if hours < 10 else f"{hours}h"


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


class _HarmlessConsole(Console):
    """Shows names and texts out of files without what would command the terminal.

    A terminal breaks long lines anywhere, so the lines of a plain str, which is a sentence of ours, end
    between words there. A Text, which a model may have written and which goes on, is left as it is.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does."""
        width = self.width if self.is_terminal else None
        shown = (wrapped(each, width) if isinstance(each, str) and width else each for each in objects)
        super().print(*shown, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=sanitize_terminal(segment.text))


def out() -> Console:
    """Return the console for results: standard output."""
    return _HarmlessConsole(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)


def notes() -> Console:
    """Return the console for progress and notes: standard error.

    It is bound now, so that a later redirection does not affect it. With -q progress and notes are dropped.
    """
    return _standard_error(is_quiet())


def aside() -> Console:
    """Standard error for what was asked for but is no result; -q leaves it."""
    return _standard_error(False)


def _standard_error(quiet: bool) -> Console:
    return _HarmlessConsole(file=sys.stderr, quiet=quiet, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line of standard output, in ASCII, so that any encoding carries it."""
    click.echo(json.dumps(value))


def confirm_removal(question: str) -> None:
    """Ask for confirmation on standard error; raise Interrupted at a no, and UsageError if no person can
    answer."""
    try:
        if not click.confirm(question, err=True):
            raise Interrupted("nothing is removed")
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise
        raise UsageError("nobody answers; --yes removes without asking") from None


@contextlib.contextmanager
def result_as_json(facts: Mapping[str, Any], shown: bool) -> Iterator[None]:
    """Print `facts` where the block succeeds; where it fails they go into the object of the failure."""
    try:
        yield
    except AnespecError as error:
        error.facts = facts
        raise
    if shown:
        print_json(facts)


@contextlib.contextmanager
def byte_progress(title: str, total: int, shown: bool) -> Iterator[Callable[[str | None, int], None]]:
    """Progress over bytes; call the result with a note, None to leave the last one, and the bytes done."""
    with timed_progress(title, shown, announced=False) as report:
        last = ""

        def update(note: str | None, done: int) -> None:
            nonlocal last
            last = last if note is None else f", {note}"
            report(f"{bytes_text(done)} of {bytes_text(total)}{last}", done / total if total else None)

        yield update


@contextlib.contextmanager
def step_progress(title: str, shown: bool) -> "Iterator[StepReport]":
    """A spinner with elapsed time for work of unknown length; call the result with what is being done."""
    text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    with _progress(SpinnerColumn(), text, ElapsedColumn(), shown=shown, expand=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda note: progress.update(task, description=f"{title}: {note}")


class TimedReport:
    """Long work at its work: call it with what is being done and, where that is known, the share done.

    What is known before the end is printed to `results`, and notes on the way to `notes`. Where that is the
    terminal of the bar they come above it; else the bar would stay behind in pieces.
    """

    def __init__(self, update: Callable[[str, float | None], None], results: Console, notes: Console) -> None:
        """`update` shows both."""
        self._update = update
        self.results = results
        self.notes = notes

    def __call__(self, note: str, share: float | None = None, /) -> None:
        """Say how far it is."""
        self._update(note, share)

    def note(self, text: str) -> None:
        """Print a note, independently of the progress bar."""
        SAID.info("%s", text)
        self.notes.print(f"note: {text}", style="yellow")


@contextlib.contextmanager
def timed_progress(title: str, shown: bool, announced: bool = True) -> Iterator[TimedReport]:
    """Elapsed and remaining time of long work; call the result with what is being done and the share done.

    A terminal sees a bar that goes when the block ends. Anything else gets a plain line at the beginning,
    if it is to be `announced`, then at most one every SECONDS_BETWEEN_LINES.
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
    """Callbacks that show a person the progress of long work: notes always, progress only if it is
    `shown`."""

    def note(text: str) -> None:
        SAID.info("%s", text)
        notes().print(f"note: {text}", style="yellow")

    return ProgressCallbacks(
        note=note,
        steps=lambda title: step_progress(title, shown),
        shares=lambda title: timed_progress(title, shown),
    )


class _PlainLines:
    """Progress for standard error that is redirected to a file."""

    def __init__(self, title: str, console: Console) -> None:
        self.title, self.console = title, console
        self.started = self.last = time.monotonic()

    def report(self, note: str, share: float | None) -> None:
        """Print a line where the last one is old enough."""
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last, elapsed = now, now - self.started
        left = ""
        if share is not None and share >= LEAST_SHARE:
            left = f", about {duration_text(elapsed / share - elapsed)} left"
        self.console.print(f"{self.title}: {note}, after {duration_text(elapsed)}{left}")


def _progress(*columns: ProgressColumn, shown: bool, expand: bool = False) -> Progress:
    """A display that goes when it is done, and that only a terminal gets to see."""
    console = notes()
    return Progress(
        *columns,
        console=console,
        transient=True,
        expand=expand,
        disable=not (shown and console.is_terminal),
    )
