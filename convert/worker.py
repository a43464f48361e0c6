"""A process that builds shard units for a run: `python -P -m anespec.convert.worker`.

Its standard input tells it a job and then the tasks; its standard output is for answers. It imports what any
job needs before it listens. A single worker is this process itself. Several are its child processes: on Linux
forked, so that they share what is imported and planned; on a Mac, where forking is not safe once system
frameworks are loaded, each imports and plans for itself. They are the standard library's, which import from
the current folder and run the main module again: here that folder is nobody's, and the module is this one.
All end with the run.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Lock
from threading import Thread

from anespec.convert.messages import Answer, BytesWritten, Finished, Job, Task
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import write_checkpoint
from anespec.convert.source.model import SourceModel
from anespec.convert.worker_process import early_end
from anespec.gguf.container import GGUFFile
from anespec.system.child_python import end_with_parent
from anespec.system.errors import AnespecError
from anespec.system.machine import own_peak_memory, peak_memory

STARTING = (
    multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context("spawn")
)


class Builder:
    """Builds units of a job's plan. It is pickled for a spawned process, which plans for itself."""

    def __init__(self, job: Job, answers: Connection, lock: Lock) -> None:
        """Plan; raises what the run does where a GGUF is not to be converted."""
        self.job = job
        self._answers = answers
        self._lock = lock
        self._plan = ConversionPlan(SourceModel(GGUFFile(job.gguf)), job.options)
        self._shared = peak_memory() if job.workers > 1 else 0

    def __reduce__(self) -> tuple[type["Builder"], tuple[Job, Connection, Lock]]:
        return Builder, (self.job, self._answers, self._lock)

    def build(self, number: int, task: Task) -> None:
        """Build a unit and leave its entry in a checkpoint, by which it is finished even if nobody hears."""
        import anespec.convert.worker_imports  # noqa: F401
        from anespec.convert.build import build_unit

        def on_written(count: int) -> None:
            self._say(BytesWritten(number, count))

        try:
            entry = build_unit(self._plan, task.unit, task.path, task.recipe, self.job.threads, on_written)
            write_checkpoint(task.path, entry)
        except Exception as error:
            self._say(_in_words(error))
        else:
            own = own_peak_memory() if self._shared else peak_memory()
            self._say(Finished(number, os.getpid(), own, self._shared))

    def _say(self, answer: Answer) -> None:
        with self._lock, contextlib.suppress(ConnectionError):
            self._answers.send(answer)


def main() -> None:
    """Serve the run until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked, answers = Connection(0, writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    # A process that is ended leaves semaphores for the standard library's own to remove, without a word.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    with contextlib.suppress(ConnectionError):
        try:
            _serve(asked, answers)
        except Exception as error:
            answers.send(_in_words(error))
    # What was imported needs no taking down.
    os._exit(0)


def _serve(asked: Connection, answers: Connection) -> None:
    import anespec.convert.worker_imports  # noqa: F401

    job: Job = asked.recv()
    builder, waiting = Builder(job, answers, STARTING.Lock()), STARTING.SimpleQueue()
    count = job.workers if job.workers > 1 else 0
    workers = [STARTING.Process(target=_work, args=(builder, waiting)) for _ in range(count)]
    for worker in workers:
        worker.start()
    tasks: Sequence[Task] = asked.recv()
    end_with_parent()
    for each in enumerate(tasks):
        waiting.put(each) if workers else builder.build(*each)
    if workers:
        ended = wait([worker.sentinel for worker in workers])
        worker = next(worker for worker in workers if worker.sentinel in ended)
        # Its files are closed before the system knows how it ended.
        worker.join()
        raise early_end(worker.exitcode or 0)


def _work(builder: Builder, waiting: "SimpleQueue[tuple[int, Task]]") -> None:
    """Build in a process of several, which ends with the one that started it."""
    Thread(target=_end_with_starter, daemon=True).start()
    while True:
        builder.build(*waiting.get())


def _end_with_starter() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(1)


def _in_words(error: Exception) -> Exception:
    """Return an error as the run is to raise it: with a text alone, which can be sent."""
    match error:
        case AnespecError():
            return error
        case ImportError():
            return AnespecError(
                f"a process of the conversion could not import what it needs ({error}); install anespec again"
            )
        case MemoryError():
            return AnespecError(
                "a process of the conversion ran out of memory; run the command again with --jobs 1"
            )
    return RuntimeError(f"in a process of the conversion:\n{''.join(traceback.format_exception(error))}")


if __name__ == "__main__":
    main()
