"""The process that builds shard units for a conversion: `python -P -m anespec.convert.worker`.

It reads a job and then the tasks from standard input, and writes answers to standard output. It imports what
every job needs before it reads. With one worker, this process itself builds. With several, its child
processes do: on Linux they are forked, and share the imports and the plan; on a Mac, where forking is unsafe
after system frameworks are loaded, each imports and plans for itself. Child processes of `multiprocessing`
import from the current folder and run the main module again. Here that folder is a neutral one, and the main
module is this one. All processes end with the conversion.
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

MP_CONTEXT = (
    multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context("spawn")
)


class Builder:
    """Builds units of a job's plan. Pickled for a spawned process, it plans again there."""

    def __init__(self, job: Job, answers: Connection, lock: Lock) -> None:
        """Plan the job; raise the same errors as the conversion if the GGUF cannot be converted."""
        self.job = job
        self._answers = answers
        self._lock = lock
        self._plan = ConversionPlan(SourceModel(GGUFFile(job.gguf)), job.options)
        self._shared = peak_memory() if job.workers > 1 else 0

    def __reduce__(self) -> tuple[type["Builder"], tuple[Job, Connection, Lock]]:
        return Builder, (self.job, self._answers, self._lock)

    def build(self, number: int, task: Task) -> None:
        """Build a unit and write its checkpoint, so that it is finished even if the answer is lost."""
        import anespec.convert.worker_imports  # noqa: F401
        from anespec.convert.build import build_unit

        def on_written(count: int) -> None:
            self._answer(BytesWritten(number, count))

        try:
            entry = build_unit(self._plan, task.unit, task.path, task.recipe, self.job.threads, on_written)
            write_checkpoint(task.path, entry)
        except Exception as error:
            self._answer(_sendable(error))
        else:
            own = own_peak_memory() if self._shared else peak_memory()
            self._answer(Finished(number, os.getpid(), own, self._shared))

    def _answer(self, answer: Answer) -> None:
        with self._lock, contextlib.suppress(ConnectionError):
            self._answers.send(answer)


def main() -> None:
    """Serve the conversion until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked, answers = Connection(0, writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    # The resource tracker removes semaphores that a killed process left, and should not warn about them.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    with contextlib.suppress(ConnectionError):
        try:
            _serve(asked, answers)
        except Exception as error:
            answers.send(_sendable(error))
    # Exit at once: the imported modules need no cleanup.
    os._exit(0)


def _serve(asked: Connection, answers: Connection) -> None:
    import anespec.convert.worker_imports  # noqa: F401

    job: Job = asked.recv()
    builder, waiting = Builder(job, answers, MP_CONTEXT.Lock()), MP_CONTEXT.SimpleQueue()
    count = job.workers if job.workers > 1 else 0
    workers = [MP_CONTEXT.Process(target=_work, args=(builder, waiting)) for _ in range(count)]
    for worker in workers:
        worker.start()
    tasks: Sequence[Task] = asked.recv()
    end_with_parent()
    for each in enumerate(tasks):
        waiting.put(each) if workers else builder.build(*each)
    if workers:
        ended = wait([worker.sentinel for worker in workers])
        worker = next(worker for worker in workers if worker.sentinel in ended)
        # Its connection closes before its exit code is known.
        worker.join()
        raise early_end(worker.exitcode or 0)


def _work(builder: Builder, waiting: "SimpleQueue[tuple[int, Task]]") -> None:
    """Build tasks in one of several child processes, which ends with its parent."""
    Thread(target=_end_with_starter, daemon=True).start()
    while True:
        builder.build(*waiting.get())


def _end_with_starter() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """Return the error that the conversion raises: one with only a text, so that it can be pickled."""
    match error:
        case AnespecError():
            return error
        case ImportError():
            return AnespecError(
                f"a process of the conversion could not import a module ({error}); install anespec again"
            )
        case MemoryError():
            return AnespecError(
                "a process of the conversion ran out of memory; run the command again with --jobs 1"
            )
    return RuntimeError(f"in a process of the conversion:\n{''.join(traceback.format_exception(error))}")


if __name__ == "__main__":
    main()
