"""Callbacks for long work: notes that a person should read, and progress."""

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anespec.validate.progress import Progress, StepReport

_log = logging.getLogger("anespec")


def _no_steps(title: str) -> "AbstractContextManager[StepReport]":
    return contextlib.nullcontext(lambda note: None)


def _no_shares(title: str) -> "AbstractContextManager[Progress]":
    return contextlib.nullcontext(lambda note, share=None, /: None)


@dataclass(frozen=True)
class Watcher:
    """The callbacks of long work.

    By default notes go to the logger `anespec`, and progress is dropped. `steps` and `shares` get a title and
    return a context: inside it, work of unknown length reports its current step, and work of known length
    also the share that is done.
    """

    note: Callable[[str], None] = _log.warning
    steps: "Callable[[str], AbstractContextManager[StepReport]]" = _no_steps
    shares: "Callable[[str], AbstractContextManager[Progress]]" = _no_shares


SILENT = Watcher()
