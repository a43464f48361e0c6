"""A started process of a conversion, which will be its workers; it may be started before there is a plan.

What takes such a process longest is what it imports, and that is the same for every job. A run that knows
early that it will convert a large file starts one at once, which imports while the run plans.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment
from anespec.system.machine import processors

if TYPE_CHECKING:
    from anespec.convert.messages import Ended, Job

WORKER = "anespec.convert.worker"

WORTH_STARTING_EARLY = 100_000_000
"""Bytes of a GGUF below which its shards are built by the run's own process."""


class WorkerProcess:
    """A process that is one worker or forks several."""

    def __init__(self, most: int) -> None:
        """Start it, to become at most so many workers; raises OSError where the system refuses."""
        ours, theirs = zip(*(Pipe() for _ in range(1 + most)), strict=True)
        descriptors = [connection.fileno() for connection in theirs]
        with _interrupts_unheard():
            self._started = subprocess.Popen(
                [*child_command(WORKER), *map(str, descriptors)],
                env=child_environment(),
                cwd=NEUTRAL_FOLDER,
                pass_fds=descriptors,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
        for connection in theirs:
            connection.close()
        self._control: Connection = ours[0]
        self._connections: Sequence[Connection] = ours[1:]
        self._ended: dict[int, int] = {}

    @property
    def most(self) -> int:
        """The number of workers that it can become."""
        return len(self._connections)

    def work(self, job: "Job") -> Sequence[Connection]:
        """Give it its job; a connection for each of the job's workers.

        If the process has ended, its connections have too, and say so to whoever listens.
        """
        with contextlib.suppress(OSError):
            self._control.send(job)
        for connection in self._connections[job.workers :]:
            connection.close()
        return self._connections[: job.workers]

    def exit_code(self, worker: int) -> int:
        """How a worker ended, once its connection is closed: its exit code, or its signal as a negative."""
        with contextlib.suppress(EOFError, OSError):
            while worker not in self._ended:
                said: Ended = self._control.recv()
                self._ended[said.worker] = os.waitstatus_to_exitcode(said.status)
        return self._ended[worker] if worker in self._ended else self._started.wait()

    def end(self) -> None:
        """End it and, by closing the pipe that they live by, the workers that it forked."""
        self._started.kill()
        if self._started.stdin is not None:
            self._started.stdin.close()
        self._started.wait()
        self._control.close()


def most_workers(wanted: int) -> int:
    """How many of the workers wanted one process can be: all where it forks them."""
    return wanted if sys.platform == "linux" else 1


@contextlib.contextmanager
def early_process(gguf: Path, jobs: int | None) -> Iterator[WorkerProcess | None]:
    """A process that gets ready while the block plans a conversion by `jobs` workers; it ends with the block.

    None where the run's own process will do, or where the system refuses one: a run that needs one says so.
    """
    process: WorkerProcess | None = None
    with contextlib.suppress(OSError):
        if jobs != 1 and processors() > 1 and gguf.stat().st_size >= WORTH_STARTING_EARLY:
            process = WorkerProcess(most_workers(min(jobs or processors(), processors())))
    try:
        yield process
    finally:
        if process is not None:
            process.end()


@contextlib.contextmanager
def _interrupts_unheard() -> Iterator[None]:
    """Child processes started here ignore Ctrl-C, which a terminal sends to all; the run ends its workers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
