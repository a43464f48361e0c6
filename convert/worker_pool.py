"""Build shard units, in several processes if that is faster.

Each process opens the GGUF and plans for itself, so only names are sent between processes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from anespec.convert.messages import BytesWritten, Finished, Job, Task
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import Entry, read_checkpoint, write_checkpoint
from anespec.convert.storage import FILE_REMOVED
from anespec.convert.worker_process import WorkerProcess
from anespec.system.errors import AnespecError, StorageError
from anespec.system.machine import peak_memory, processors

OnWritten = Callable[[Task, int], None]
"""A callback for progress: a task, and the number of its weight bytes written since the last call."""


class ConversionWorkers:
    """Builds units; with more than one worker in other processes, which start and import at once."""

    def __init__(self, plan: ConversionPlan, workers: int, early: WorkerProcess | None = None) -> None:
        """Start the process unless `early` is one; raise AnespecError if it cannot be started."""
        self._plan = plan
        self._workers = workers
        self._threads = max(1, processors() // workers)
        self._shared = 0
        self._own: dict[int, int] = {}
        self._process = early
        if early is None and workers > 1:
            try:
                self._process = WorkerProcess()
            except OSError as error:
                raise AnespecError(
                    f"the processes of the conversion cannot be started ({error.strerror}); "
                    "raise the system's limits or run the command again with --jobs 1"
                ) from error
        if self._process is not None:
            self._process.send(Job(plan.model.file.path.absolute(), plan.options, self._threads, workers))

    def close(self) -> None:
        """End the workers, even within a shard; else they would write to folders that the run removes."""
        if self._process is not None:
            self._process.end()

    @property
    def peak_memory_bytes(self) -> int:
        """The sum of the peak memory of this process and its workers; shared memory counts once."""
        return peak_memory() + self._shared + sum(self._own.values())

    def build(self, tasks: Sequence[Task], on_written: OnWritten) -> Iterator[tuple[Task, Entry]]:
        """Start to build the units of all tasks, in the order of `staggered`; yield each when it is finished.

        Raises, from the iterator:
            GGUFError, UnsupportedModelError: a tensor cannot be converted.
            StorageError: the disk is full, or a package cannot be written.
            AnespecError: a worker ended early.
        """
        if self._process is None:
            return self._build_here(tasks, on_written)
        ordered = staggered(tasks, self._workers, lambda task: task.unit.weight_bytes(self._plan))
        self._process.send(ordered)
        return self._finished(self._process, ordered, on_written)

    def _build_here(self, tasks: Sequence[Task], on_written: OnWritten) -> Iterator[tuple[Task, Entry]]:
        from anespec.convert.build import build_unit

        for task in tasks:
            on_bytes = partial(on_written, task)
            entry = build_unit(self._plan, task.unit, task.path, task.recipe, self._threads, on_bytes)
            write_checkpoint(task.path, entry)
            yield task, entry

    def _finished(
        self, process: WorkerProcess, tasks: Sequence[Task], on_written: OnWritten
    ) -> Iterator[tuple[Task, Entry]]:
        """Yield the tasks as the process finishes them."""
        missing = len(tasks)
        while missing:
            match process.answer():
                case BytesWritten(number, count):
                    on_written(tasks[number], count)
                case Finished(number, worker, own, shared):
                    task, self._own[worker], self._shared = tasks[number], own, shared
                    if (entry := read_checkpoint(task.path)) is None:
                        raise StorageError(f"{task.path}: {FILE_REMOVED}")
                    missing -= 1
                    yield task, entry
                case error:
                    raise error


def staggered(tasks: Sequence[Task], workers: int, size: Callable[[Task], int]) -> list[Task]:
    """Order tasks by size, largest first, but give all workers except one a small task to begin with.

    With the largest first, all work ends soonest. If all workers started with shards of one size, these would
    be finished at the same time, and an interruption before that would leave nothing to keep.
    """
    largest_first = sorted(tasks, key=lambda task: -size(task))
    early = min(workers - 1, len(tasks) - workers)
    if early <= 0:
        return largest_first
    middle = len(tasks) - early
    return [*largest_first[:1], *reversed(largest_first[middle:]), *largest_first[1:middle]]
