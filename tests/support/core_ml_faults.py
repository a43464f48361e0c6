"""Faults that stand-ins of Core ML meet, told by the environment, so that child processes meet them too."""

import json
import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

VARIABLE = "ANESPEC_STANDIN_FAULTS"

_met: Counter[tuple[str, str]] = Counter()


@dataclass(frozen=True)
class Fault:
    """What happens when a process does `op` the `nth` time (0: every time) to what has `of` in its name.

    One of: a text is raised, a signal comes, nothing comes any more, the disk is full, or the results are
    `strange`: no numbers, or a state of another shape.
    """

    op: str
    of: str = ""
    nth: int = 1
    text: str = ""
    signal: int = 0
    hang: bool = False
    strange: bool = False
    full: bool = False
    told_at: str = ""
    """A file that is made where nothing comes any more, for who waits for that."""


def plan_faults(patch: pytest.MonkeyPatch, *faults: Fault) -> None:
    """Have these happen from now on, here and in processes that are started."""
    _met.clear()
    patch.setenv(VARIABLE, json.dumps([asdict(fault) for fault in faults]))


def meet(op: str, path: Path | str) -> bool:
    """Whether a strange result is due; what else is planned happens."""
    name = Path(path).name
    _met[op, name] += 1
    for fault in (Fault(**fields) for fields in json.loads(os.environ.get(VARIABLE, "[]"))):
        if fault.op == op and fault.of in name and fault.nth in (0, _met[op, name]):
            if fault.signal:
                os.kill(os.getpid(), signal.Signals(fault.signal))
            if fault.hang:
                if fault.told_at:
                    Path(fault.told_at).touch()
                time.sleep(600)
            if fault.full:
                raise OSError(28, "No space left on device")
            if fault.text:
                raise RuntimeError(fault.text)
            return fault.strange
    return False
