"""Choose the receiver of progress when a program loads a model: a terminal, a notebook, or a function."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from anespec.watching import SILENT, Watcher

if TYPE_CHECKING:
    from anespec.validate.progress import Progress, StepReport

ProgressCallback = Callable[[str, float | None], None]
"""Called with the current step, and the share done, from 0 to 1 (None if it is unknown)."""

SECONDS_BETWEEN_LINES = 0.2
BAR = 20


def watcher_of(progress: bool | ProgressCallback) -> Watcher:
    """Return the callbacks for progress: those of the function; for True those of this terminal or notebook;
    for False none."""
    if callable(progress):
        return _calling(progress)
    if not progress:
        return SILENT
    from rich.console import Console

    from anespec.console import watcher

    # Rich draws in a notebook only with ipywidgets; one line that is written over needs nothing.
    if Console().is_jupyter:
        return _calling(*_line())
    if sys.stderr is not None and sys.stderr.isatty():
        return replace(watcher(shown=True), note=SILENT.note)
    return SILENT


def _calling(report: ProgressCallback, end: Callable[[], None] = lambda: None) -> Watcher:
    """Calls `report` after each step, and `end` after each piece of work."""

    @contextlib.contextmanager
    def steps(title: str) -> "Iterator[StepReport]":
        report(title, None)
        try:
            yield lambda note: report(f"{title}: {note}", None)
        finally:
            end()

    @contextlib.contextmanager
    def shares(title: str) -> "Iterator[Progress]":
        report(title, None)
        try:
            yield lambda note, share=None, /: report(f"{title}: {note}", share)
        finally:
            end()

    return Watcher(steps=steps, shares=shares)


def _line() -> tuple[ProgressCallback, Callable[[], None]]:
    """Return the functions that rewrite one line on standard error, and that remove it."""
    last = longest = 0.0

    def report(what: str, share: float | None) -> None:
        nonlocal last, longest
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        done = "" if share is None else f"{'█' * round(BAR * share):░<{BAR}} {share:4.0%} "
        line = done + what
        sys.stderr.write(f"\r{line:<{int(longest)}}")
        sys.stderr.flush()
        longest = max(longest, len(line))

    def end() -> None:
        nonlocal last, longest
        sys.stderr.write(f"\r{'':<{int(longest)}}\r")
        sys.stderr.flush()
        last = longest = 0.0

    return report, end
