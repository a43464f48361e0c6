"""A process that builds shard units for a run: `python -P -m anespec.convert.worker CONTROL CONNECTION...`.

It is given sockets by their descriptors: one to be told its job, and one for each worker that it may become.
It imports what any job needs before it listens. A single worker is this process itself. Several are forked,
once all is imported and planned, so that they share that. All of them live as long as the standard input,
which is a pipe from the run.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from anespec.convert.messages import Ended, Failed, Finished, Job, Memory, Task, Written
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import write_checkpoint
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.system.child_python import end_with_parent
from anespec.system.errors import AnespecError
from anespec.system.machine import own_peak_memory, peak_memory


def main() -> None:
    """Serve the run until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, *workers = (Connection(int(descriptor)) for descriptor in sys.argv[1:])
    with contextlib.suppress(EOFError, ConnectionError):
        unready = _import_all()
        job: Job = control.recv()
        for unneeded in workers[job.workers :]:
            unneeded.close()
        _serve_all(job, control, workers[: job.workers], unready)
    # What was imported needs no taking down.
    os._exit(0)


def _import_all() -> Exception | None:
    """Import what building takes; what went wrong is for the workers to say, who have nobody to tell yet."""
    try:
        import anespec.convert.worker_imports  # noqa: F401
    except Exception as error:
        return error
    return None


def _serve_all(
    job: Job, control: Connection, workers: Sequence[Connection], unready: Exception | None
) -> None:
    try:
        if unready is not None:
            raise unready
        plan = ConversionPlan(SourceModel(GGUFFile(job.gguf)), job.options)
    except Exception as error:
        for worker in workers:
            worker.send(_failure(error))
        return
    if len(workers) == 1:
        _serve(plan, job.threads, workers[0], shared=0)
        return
    shared, forked = peak_memory(), dict[int, int]()
    for number, worker in enumerate(workers):
        if not (pid := os.fork()):
            for other in (control, *workers):
                if other is not worker:
                    other.close()
            _serve_forked(plan, job.threads, worker, shared)
        forked[pid] = number
    for worker in workers:
        worker.close()
    while forked:
        pid, status = os.wait()
        control.send(Ended(forked.pop(pid), status))


def _serve_forked(plan: ConversionPlan, threads: int, worker: Connection, shared: int) -> None:
    """Serve and never return: what the parent does next is not this process's to do."""
    status = 1
    try:
        _serve(plan, threads, worker, shared)
        status = 0
    except (EOFError, ConnectionError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(plan: ConversionPlan, threads: int, worker: Connection, shared: int) -> None:
    """Build one unit after the other; raises EOFError or ConnectionError when the run hangs up."""
    end_with_parent()
    while True:
        task: Task = worker.recv()
        try:
            _build(plan, task, threads, worker)
        except Exception as error:
            worker.send(_failure(error))
        else:
            own = own_peak_memory() if shared else peak_memory()
            worker.send(Finished(Memory(own, shared)))


def _build(plan: ConversionPlan, task: Task, threads: int, worker: Connection) -> None:
    """Build a unit and leave its entry in a checkpoint, by which it is finished even if nobody hears."""
    from anespec.convert.build import build_unit

    def on_written(count: int) -> None:
        worker.send(Written(count))

    write_checkpoint(task.path, build_unit(plan, task.unit, task.path, task.recipe, threads, on_written))


def _failure(error: Exception) -> Failed:
    """Return the message to the run about an error."""
    told: AnespecError | None = None
    match error:
        case AnespecError():
            told = error
        case ImportError():
            told = AnespecError(
                f"a process of the conversion could not import what it needs ({error}); install anespec again"
            )
        case MemoryError():
            told = AnespecError(
                "a process of the conversion ran out of memory; run the command again with --jobs 1"
            )
    return Failed(told, "".join(traceback.format_exception(error)))


if __name__ == "__main__":
    main()
