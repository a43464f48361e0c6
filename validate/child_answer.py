"""Run a module in a child process that a library may crash, and read the answer that it prints.

The parent calls `child_answer`, the child's module `answer_parent`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from anespec.system.child_python import (
    NEUTRAL_FOLDER,
    answer_stream,
    child_command,
    child_environment,
    end_with_parent,
    lifeline,
)
from anespec.system.coreml_errors import ended_by, no_answer
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import LONGEST_REASON, last_line, printable


class ChildLostError(AnespecError):
    """The process was ended by a signal, or gave no answer in time.

    `text` describes that in the terms of `system.coreml_errors`, after the last line that the process
    printed.
    """

    def __init__(self, said: str, end: str) -> None:
        super().__init__(f"{end}: {said}" if said else end)
        self.text = f"{said}\n{end}".strip()


def child_answer(module: str, arguments: Sequence[str], longest_wait: float) -> bytes:
    """Run a module in a new process, which ends with this one, and return its standard output.

    Raises:
        ChildLostError: a signal ended the process, or it took more than `longest_wait` seconds.
        StorageError: the process ended with that error's exit code, for example when the disk is full.
        AnespecError: the process failed; the reason is the last line that it printed.
    """
    try:
        with lifeline() as held:
            done = subprocess.run(
                [*child_command(module), *arguments],
                env=child_environment(),
                cwd=NEUTRAL_FOLDER,
                stdin=held,
                capture_output=True,
                timeout=longest_wait,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise ChildLostError("", no_answer(longest_wait)) from None
    except OSError as error:
        raise AnespecError(printable(str(error), LONGEST_REASON)) from error
    said = last_line(done.stderr.decode(errors="replace"))
    if done.returncode < 0:
        raise ChildLostError(said, ended_by(-done.returncode))
    if done.returncode:
        kind = StorageError if done.returncode == StorageError.exit_code else AnespecError
        raise kind(said or f"it ended with exit code {done.returncode}")
    return done.stdout


def answer_parent(answer: Callable[[Sequence[str]], bytes]) -> NoReturn:
    """Print the answer to this child's arguments, or an AnespecError on standard error, and end the process.

    The process ends when its parent ends. It exits without closing anything, so that a library's destructors
    cannot lose the answer (see anespec.system.process_exit).
    """
    end_with_parent()
    answers = answer_stream()
    try:
        found = answer(sys.argv[1:])
    except AnespecError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(error.exit_code)
    answers.write(found)
    answers.flush()
    os._exit(0)
