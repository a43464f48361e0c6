"""The process that builds the units of a conversion; it may be started before there is a plan.

What takes such a process longest is what it imports, and that is the same for every job. A run that knows
early that it will convert a large file starts it at once, so that it imports while the run plans.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment, signal_name
from anespec.system.errors import AnespecError
from anespec.system.machine import processors

if TYPE_CHECKING:
    from anespec.convert.messages import Answer, Job, Task

WORKER = "anespec.convert.worker"

WORTH_STARTING_EARLY = 100_000_000
"""Bytes of a GGUF below which its shards are built by the run's own process."""


class WorkerProcess:
    """A process that is one worker or has several of its own. It takes one job, then the job's tasks."""

    def __init__(self) -> None:
        """Start it; raises OSError where the system refuses."""
        asking, self._asked = Pipe(duplex=False)
        self._answers, answering = Pipe(duplex=False)
        # Processes started so ignore Ctrl-C, which a terminal sends to all; the run ends them.
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
        """Give it the job or the tasks. That it has ended is told where it should answer."""
        with contextlib.suppress(OSError):
            self._asked.send(request)

    def answer(self) -> "Answer":
        """Wait for its next answer; an AnespecError where it ended before its time."""
        with contextlib.suppress(EOFError, OSError):
            answer: Answer = self._answers.recv()
            return answer
        return early_end(self._started.wait())

    def end(self) -> None:
        """End it and, since they live no longer than it, its workers; nothing writes any more afterwards."""
        self._started.kill()
        self._started.wait()
        with self._asked, self._answers:
            if not self._answers.closed:
                while os.read(self._answers.fileno(), 1 << 16):
                    pass


def early_end(code: int) -> AnespecError:
    """Return a sentence for a process that ended early: with an exit code, or a signal as a negative one."""
    how = f"ended with exit code {code} before its work was done"
    if code < 0:
        how = f"was ended by {signal_name(-code)}"
    if code == -signal.SIGKILL:
        how = "was killed, most likely for want of memory"
    return AnespecError(f"a process of the conversion {how}; run the command again with --jobs 1")


@contextlib.contextmanager
def early_process(gguf: Path, jobs: int | None) -> Iterator[WorkerProcess | None]:
    """A process that gets ready while the block plans a conversion by `jobs` workers; it ends with the block.

    None where the run's own process will do, or where the system refuses one: a run that needs one says so.
    """
    process: WorkerProcess | None = None
    with contextlib.suppress(OSError):
        if jobs != 1 and processors() > 1 and gguf.stat().st_size >= WORTH_STARTING_EARLY:
            process = WorkerProcess()
    try:
        yield process
    finally:
        if process is not None:
            process.end()
