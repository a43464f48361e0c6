"""Runs one trial and writes what it found, in a process that Core ML may kill.

    python -P -m anespec.validate.selftest.child ASKED.json

Lines of JSON on standard output: `{"stage": …}` before each thing that is begun, `{"kept": …}` before the
same is tried on the CPU alone, and at the end one of `{"measured": …}`, `{"failure": …}`, `{"not_here": …}`,
`{"no_room": …}`.
It lives as long as its standard input, a pipe.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from anespec.manifests.schema import Record
from anespec.system.child_python import answer_stream, end_with_parent
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.choosing import make_device
from anespec.validate.selftest.devices.device import NotHereError
from anespec.validate.selftest.disk import is_full
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import Failure, Measured, Trial, failure_of
from anespec.validate.selftest.steps import STEPS


class Asked(Record):
    """What a process is to do. `device` names a class, as `module:Class`; `folder` keeps what is made."""

    trial: Trial
    scale: Scale
    device: str
    folder: str


class Told(Record):
    """One line of what it says; one of the fields is set.

    `kept` counts where nothing comes after it: what ends the process then is the fault of the CPU's baseline.
    """

    stage: str | None = None
    kept: Measured | None = None
    measured: Measured | None = None
    failure: Failure | None = None
    not_here: str | None = None
    no_room: str | None = None


def run_trial(asked: Asked, tell: Callable[[Told], None]) -> None:
    """Run one trial; its end is told like its stages. What Core ML raises ends the trial alone."""
    stage = ""

    def say(text: str) -> None:
        nonlocal stage
        stage = text
        tell(Told(stage=text))

    say("starting")
    step = next(step for step in STEPS if step.id == asked.trial.step)
    try:
        bench = Bench(
            make_device(asked.device),
            asked.scale,
            Path(asked.folder),
            say,
            lambda measured: tell(Told(kept=measured)),
        )
        tell(Told(measured=step.run(asked.trial, bench)))
    except NotHereError as error:
        tell(Told(not_here=str(error)))
    except Exception as error:
        # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
        failure = failure_of(error, stage)
        tell(Told(no_room=failure.text) if is_full(error) else Told(failure=failure))


def _write(stream: BinaryIO, line: Told) -> None:
    stream.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
    stream.flush()


def main() -> None:
    """Do what the file says that is named; nothing is closed, since a library may crash while it ends."""
    end_with_parent()
    told = answer_stream()
    asked = Asked.model_validate_json(Path(sys.argv[1]).read_bytes())
    run_trial(asked, lambda line: _write(told, line))
    os._exit(0)


if __name__ == "__main__":
    main()
