"""Run one trial and print its results, in a process that Core ML may kill.

    python -P -m anespec.validate.selftest.child ASKED.json

It prints lines of JSON: `{"stage": …}` before each stage, `{"kept": …}` before the CPU alone is tried, and at
the end one of `{"measured": …}`, `{"failure": …}`, `{"not_here": …}`, `{"no_room": …}`. The process ends when
its standard input, a pipe from its parent, closes.
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


class TrialRequest(Record):
    """The job of a process. `device` names a class as `module:Class`; `folder` keeps what is made."""

    trial: Trial
    scale: Scale
    device: str
    folder: str


class ChildLine(Record):
    """One printed line; one of the fields is set.

    `kept` is the result if no other line follows: then the CPU's baseline ended the process.
    """

    stage: str | None = None
    kept: Measured | None = None
    measured: Measured | None = None
    failure: Failure | None = None
    not_here: str | None = None
    no_room: str | None = None


def run_trial(asked: TrialRequest, tell: Callable[[ChildLine], None]) -> None:
    """Run one trial and report its stages and its result. An exception of Core ML ends only the trial."""
    stage = ""

    def say(text: str) -> None:
        nonlocal stage
        stage = text
        tell(ChildLine(stage=text))

    say("starting")
    step = next(step for step in STEPS if step.id == asked.trial.step)
    try:
        bench = Bench(
            make_device(asked.device),
            asked.scale,
            Path(asked.folder),
            say,
            lambda measured: tell(ChildLine(kept=measured)),
        )
        tell(ChildLine(measured=step.run(asked.trial, bench)))
    except NotHereError as error:
        tell(ChildLine(not_here=str(error)))
    except Exception as error:
        # Core ML raises RuntimeError, ValueError and plain Exception.
        failure = failure_of(error, stage)
        tell(ChildLine(no_room=failure.text) if is_full(error) else ChildLine(failure=failure))


def _write(stream: BinaryIO, line: ChildLine) -> None:
    stream.write(line.model_dump_json(exclude_none=True).encode() + b"\n")
    stream.flush()


def main() -> None:
    """Run the job in the named file.

    Nothing is closed at the end, since a library may crash while it closes.
    """
    end_with_parent()
    stream = answer_stream()
    asked = TrialRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
    run_trial(asked, lambda line: _write(stream, line))
    os._exit(0)


if __name__ == "__main__":
    main()
