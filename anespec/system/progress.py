"""Define callbacks for long work: notes that the user should read, and progress."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


class Progress(Protocol):
    """A function that receives the current step and, if it is known, the share that is done: 0 to 1."""

    def __call__(self, note: str, share: float | None = None, /) -> None:
        """Report a step."""
        ...


StepReport = Callable[[str], None]
"""A function that receives the current step of work of unknown length."""


def idle() -> None:
    """Do nothing: the default of a callback."""


def in_steps(progress: Progress, steps: int) -> StepReport:
    """Return a function to call at the beginning of each of `steps` equally long steps."""
    done = itertools.count()
    return lambda note: progress(note, min(next(done) / max(1, steps), 1.0))


def in_weighted_steps(progress: Progress, weights: Sequence[float]) -> StepReport:
    """Return a function to call at the beginning of each step; `weights` are the relative lengths of the
    steps."""
    whole = sum(weights) or 1.0
    behind = itertools.chain(itertools.accumulate(weights, initial=0.0), itertools.repeat(whole))
    return lambda note: progress(note, min(next(behind) / whole, 1.0))


_log = logging.getLogger("anespec")


def _no_steps(title: str) -> "AbstractContextManager[StepReport]":
    return contextlib.nullcontext(lambda note: None)


def _no_shares(title: str) -> "AbstractContextManager[Progress]":
    return contextlib.nullcontext(lambda note, share=None, /: None)


@dataclass(frozen=True)
class ProgressCallbacks:
    """The callbacks of long work.

    By default notes go to the logger `anespec`, and progress is dropped. `steps` and `shares` get a title and
    return a context: inside it, work of unknown length reports its current step, and work of known length
    also the share that is done.
    """

    note: Callable[[str], None] = _log.warning
    steps: "Callable[[str], AbstractContextManager[StepReport]]" = _no_steps
    shares: "Callable[[str], AbstractContextManager[Progress]]" = _no_shares


Watcher = ProgressCallbacks
"""The former name, for existing programs."""

SILENT = ProgressCallbacks()
