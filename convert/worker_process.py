"""Start the process that builds the units of a conversion, possibly before the plan is made.

Such a process needs most time for its imports, which are the same for every job. So a conversion of a large
file starts it first, and plans while it imports.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.manifests.store import model_bytes
from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment, signal_name
from anespec.system.errors import AnespecError
from anespec.system.machine import processors

if TYPE_CHECKING:
    from anespec.convert.messages import Answer, Job, Task

WORKER = "anespec.convert.worker"

EARLY_START_BYTES = 100_000_000
"""Bytes of a GGUF; the shards of a smaller one are built in the conversion's own process."""


class WorkerProcess:
    """A process that is a single worker or starts several. It takes one job, then the job's tasks."""

    def __init__(self) -> None:
        """Start the process; raise OSError if that fails."""
        asking, self._asked = Pipe(duplex=False)
        self._answers, answering = Pipe(duplex=False)
        # The process ignores ^C, which a terminal sends to all processes; the conversion ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        with asking, answering:
            try:
                self._started = subprocess.Popen(
                    child_command(WORKER),
                    env=child_environment(),
                    cwd=NEUTRAL_FOLDER,
                    stdin=asking.fileno(),
                    stdout=answering.fileno(),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def send(self, request: "Job | Sequence[Task]") -> None:
        """Send the job or the tasks. If the process has ended, `answer` reports it."""
        with contextlib.suppress(OSError):
            self._asked.send(request)

    def answer(self) -> "Answer":
        """Wait for the next answer; it is an AnespecError if the process ended early."""
        with contextlib.suppress(EOFError, OSError):
            answer: Answer = self._answers.recv()
            return answer
        return early_end(self._started.wait())

    def end(self) -> None:
        """End the process and its workers; after that none of them writes any more."""
        self._started.kill()
        self._started.wait()
        with self._asked, self._answers:
            if not self._answers.closed:
                while os.read(self._answers.fileno(), 1 << 16):
                    pass


def early_end(code: int) -> AnespecError:
    """Return the error for a process that ended early; a negative `code` is a signal's number."""
    how = f"ended with exit code {code} before its work was done"
    if code < 0:
        how = f"was ended by {signal_name(-code)}"
    if code == -signal.SIGKILL:
        how = "was killed, most likely for lack of memory"
    return AnespecError(f"a process of the conversion {how}; run the command again with --jobs 1")


@contextlib.contextmanager
def early_process(gguf: Path, jobs: int | None) -> Iterator[WorkerProcess | None]:
    """Start a process that imports while the block plans a conversion with `jobs` workers; end it afterwards.

    Yield None if the conversion's own process will build the shards, or if the process cannot be started; a
    conversion that needs one then reports the failure.
    """
    process: WorkerProcess | None = None
    with contextlib.suppress(OSError):
        if jobs != 1 and processors() > 1 and model_bytes(gguf) >= EARLY_START_BYTES:
            process = WorkerProcess()
    try:
        yield process
    finally:
        if process is not None:
            process.end()
