"""Who hears of long work: notes that a person should read, and how far it is."""

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
    """What long work calls. Left as it is, notes go to the log `anespec` and nobody hears of progress.

    `steps` and `shares` are given a title and make a context: inside it work of unknown length says what is
    being done, and work of known length also what share of it is.
    """

    note: Callable[[str], None] = _log.warning
    steps: "Callable[[str], AbstractContextManager[StepReport]]" = _no_steps
    shares: "Callable[[str], AbstractContextManager[Progress]]" = _no_shares


SILENT = Watcher()
