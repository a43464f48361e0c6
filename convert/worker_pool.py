"""Builds shard units, several at a time in processes of their own where that pays.

A worker opens the GGUF and plans for itself, so that only names travel between processes. On Linux one
process imports coremltools and forks them all. On a Mac, where forking is not safe once system frameworks are
loaded, each imports for itself. They are not multiprocessing's, whose helpers import from the current folder.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from anespec.convert.messages import Answer, Failed, Finished, Job, Memory, Task, Written
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import Entry, read_checkpoint, write_checkpoint
from anespec.convert.storage import TAKEN_AWAY
from anespec.convert.worker_process import WorkerProcess, most_workers
from anespec.system.child_python import signal_name
from anespec.system.errors import AnespecError, StorageError
from anespec.system.machine import peak_memory, processors

OnWritten = Callable[[Task, int], None]
"""Told of a task and of how many more bytes of its weights are written."""


class WorkerPool:
    """Builds units; with more than one worker, in processes that start working towards it at once."""

    def __init__(self, plan: ConversionPlan, workers: int, early: WorkerProcess | None = None) -> None:
        """Start the processes, `early` being one of them; raises AnespecError where the system refuses."""
        self._plan = plan
        self._threads = max(1, processors() // workers)
        self._workers: list[_Worker] = []
        if early is not None:
            self._give_job(early, min(workers, early.most))
        elif workers == 1:
            return
        try:
            while missing := workers - len(self._workers):
                process = WorkerProcess(most_workers(missing))
                self._give_job(process, process.most)
        except OSError as error:
            self.stop()
            raise AnespecError(
                f"the processes of the conversion cannot be started ({error.strerror}); "
                "raise the system's limits or run the command again with --jobs 1"
            ) from error

    def _give_job(self, process: WorkerProcess, workers: int) -> None:
        job = Job(self._plan.model.file.path.absolute(), self._plan.options, self._threads, workers)
        connections = enumerate(process.work(job))
        self._workers += [_Worker(process, number, connection) for number, connection in connections]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End workers, even within a shard, where they would go on writing to what the run cleans up."""
        for worker in self._workers:
            worker.process.end()
        for worker in self._workers:
            worker.hang_up()

    @property
    def peak_memory_bytes(self) -> int:
        """The largest memory of this process and of each worker, added up; what workers share counts once."""
        memories = [worker.memory for worker in self._workers]
        shared = max((memory.shared for memory in memories), default=0)
        return peak_memory() + shared + sum(memory.own for memory in memories)

    def build(self, tasks: Sequence[Task], on_written: OnWritten) -> Iterator[tuple[Task, Entry]]:
        """Begin to build every task's unit, in the order of `staggered`; they come as they are finished.

        Raises, from the iterator:
            GGUFError, UnsupportedModelError: a tensor cannot be converted.
            StorageError: the disk is full or refuses.
            AnespecError: a worker ended before its time.
        """
        if not self._workers:
            return self._build_here(tasks, on_written)
        waiting, heard = SimpleQueue[Task](), SimpleQueue[_Heard]()
        for task in staggered(tasks, len(self._workers), lambda task: task.unit.weight_bytes(self._plan)):
            waiting.put(task)
        for worker in self._workers:
            worker.begin(waiting, heard)
        return _finished(len(tasks), heard, on_written)

    def _build_here(self, tasks: Sequence[Task], on_written: OnWritten) -> Iterator[tuple[Task, Entry]]:
        from anespec.convert.build import build_unit

        for task in tasks:
            told = partial(on_written, task)
            entry = build_unit(self._plan, task.unit, task.path, task.recipe, self._threads, told)
            write_checkpoint(task.path, entry)
            yield task, entry


def staggered(tasks: Sequence[Task], workers: int, size: Callable[[Task], int]) -> list[Task]:
    """Order tasks by size: the largest first, which ends soonest, but a small one for all workers but one.

    Else shards of one size would all be finished at the same time, and an interruption before that would find
    nothing to keep.
    """
    largest_first = sorted(tasks, key=lambda task: -size(task))
    early = min(workers - 1, len(tasks) - workers)
    if early <= 0:
        return largest_first
    middle = len(tasks) - early
    return [*largest_first[:1], *reversed(largest_first[middle:]), *largest_first[1:middle]]


@dataclass(frozen=True)
class _Heard:
    """Return a worker's message while it was at a task; None if it ended."""

    worker: "_Worker"
    task: Task
    answer: Answer | None


def _finished(
    count: int, heard: "SimpleQueue[_Heard]", on_written: OnWritten
) -> Iterator[tuple[Task, Entry]]:
    """The next `count` units that workers finish."""
    while count:
        said = heard.get()
        match said.answer:
            case Written(written):
                on_written(said.task, written)
            case Finished():
                if (entry := read_checkpoint(said.task.path)) is None:
                    raise StorageError(f"{said.task.path}: {TAKEN_AWAY}")
                count -= 1
                yield said.task, entry
            case Failed(None, traceback):
                raise RuntimeError(f"in a process of the conversion:\n{traceback}")
            case Failed(AnespecError() as error):
                raise error
            case None:
                raise said.worker.how_it_ended()


class _Worker:
    """One worker and its last message."""

    def __init__(self, process: WorkerProcess, number: int, connection: Connection) -> None:
        self.process = process
        self.memory = Memory(0, 0)
        self._number = number
        self._connection = connection
        self._thread: Thread | None = None

    def begin(self, waiting: "SimpleQueue[Task]", heard: "SimpleQueue[_Heard]") -> None:
        """Work off what is waiting, in a thread that passes on what the worker says."""
        self._thread = Thread(target=self._work_off, args=(waiting, heard), daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Wait until the ended process has closed its side, then close this one."""
        if self._thread is not None:
            self._thread.join()
        self._connection.close()

    def how_it_ended(self) -> AnespecError:
        """A sentence for a worker that ended before its time."""
        code, again = self.process.exit_code(self._number), "run the command again with --jobs 1"
        if code == -signal.SIGKILL:
            return AnespecError(
                f"a process of the conversion was killed, most likely for want of memory; {again}"
            )
        if code < 0:
            return AnespecError(f"a process of the conversion was ended by {signal_name(-code)}; {again}")
        return AnespecError(
            f"a process of the conversion ended with exit code {code} before its work was done; {again}"
        )

    def _work_off(self, waiting: "SimpleQueue[Task]", heard: "SimpleQueue[_Heard]") -> None:
        with contextlib.suppress(Empty):
            while task := waiting.get_nowait():
                if not self._build(task, heard):
                    break

    def _build(self, task: Task, heard: "SimpleQueue[_Heard]") -> bool:
        """Whether the worker finished the task."""
        with contextlib.suppress(OSError):
            self._connection.send(task)
        # A worker that has hung up may have said why.
        while True:
            answer: Answer | None = None
            with contextlib.suppress(EOFError, OSError):
                answer = self._connection.recv()
            if isinstance(answer, Finished):
                self.memory = answer.memory
            heard.put(_Heard(self, task, answer))
            if not isinstance(answer, Written):
                return isinstance(answer, Finished)
