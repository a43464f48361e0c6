"""Builds the parts of an artifact, several at a time in processes of their own where that pays.

A worker opens the GGUF and plans for itself, so that only names and manifest entries travel between
processes. On Linux one server imports coremltools and forks them all. On a Mac, where forking is not safe
once system frameworks are loaded, each imports for itself.
"""

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Self

from anespec.convert.finished import Entry, read_note, write_note
from anespec.convert.parts import Part, parts_of
from anespec.convert.plan import ConversionPlan, ConvertOptions
from anespec.convert.source.model import SourceModel
from anespec.manifests.errors import AnespecError, StorageError
from anespec.manifests.gguf_file import GGUFFile

WORTH_A_PROCESS = 400_000_000
"""Bytes of weights per worker: below that, starting it (3 s of imports) takes longer than it saves."""

WORKER_MEMORY = 400_000_000
"""Bytes of a worker beside its weights; measured 0.34 GB, of which imports 0.3."""

LARGEST_SHARE = 1.5
"""All workers together stay below this multiple of the largest shard (DESIGN.md section 9)."""

IMPORTS = "anespec.convert.worker_imports"


@dataclass(frozen=True)
class Task:
    """One part to build at `path`; `recipe` is the hash of all that it follows from."""

    part: Part
    path: Path
    recipe: str


class Crew:
    """Builds parts; with more than one worker, in processes that start working towards it at once."""

    def __init__(self, plan: ConversionPlan, workers: int) -> None:
        self._plan = plan
        self._threads = max(1, _cores() // workers)
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            self._pool = ProcessPoolExecutor(
                workers, _context(), _begin, (plan.model.file.path, plan.options, self._threads)
            )
            if sys.platform != "linux":
                for _ in range(workers):
                    self._pool.submit(os.getpid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        elif self._pool is not None:
            self._pool.shutdown()

    def stop(self) -> None:
        """End workers in the middle of their shards, which would go on writing where the run cleans up."""
        if self._pool is not None:
            for process in multiprocessing.active_children():
                process.terminate()
            self._pool.shutdown(cancel_futures=True)

    def build(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Entry]]:
        """Begin to build every task's part, the largest first; they come as they are finished.

        Raises, from the iterator:
            GGUFError, UnsupportedModelError: a tensor cannot be converted.
            StorageError: the disk is full or refuses.
            AnespecError: a worker was killed.
        """
        if self._pool is None:
            return self._build_here(tasks)
        ordered = sorted(tasks, key=lambda task: -task.part.weight_bytes(self._plan))
        return _finished({self._pool.submit(_build, task): task for task in ordered})

    def _build_here(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Entry]]:
        from anespec.convert.build import build_part

        for task in tasks:
            yield task, build_part(self._plan, task.part, task.path, task.recipe, self._threads)


def _context() -> BaseContext:
    """How workers are started; the imports they need begin at once."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([IMPORTS])
    forkserver.ensure_running()
    return context


def _finished(futures: Mapping[Future[None], Task]) -> Iterator[tuple[Task, Entry]]:
    try:
        for future in as_completed(futures):
            future.result()
            task = futures[future]
            if (entry := read_note(task.path)) is None:
                raise StorageError(
                    f"{task.path}: was taken away while the run went on; run the command again"
                )
            yield task, entry
    except BrokenProcessPool:
        raise AnespecError(
            "a process of the conversion was killed, most likely for want of memory; "
            "run the command again with --jobs 1"
        ) from None


def suitable_workers(plan: ConversionPlan) -> int:
    """How many processes pay for a plan on this machine, with the memory that is free now."""
    parts = parts_of(plan)
    largest = max(part.weight_bytes(plan) for part in parts)
    # The source of one projection is mapped at a time; of what it becomes, a piece.
    need = WORKER_MEMORY + plan.largest_matrix_bytes()
    limits = (
        _cores(),
        len(parts),
        plan.weight_bytes() // WORTH_A_PROCESS,
        int(LARGEST_SHARE * largest) // need,
        _free_memory() // need,
    )
    return max(1, min(limits))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_memory() -> int:
    """Bytes that can be had without swapping; half of all where the system does not tell."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            line = next(line for line in lines if line.startswith("MemAvailable"))
        return 1024 * int(line.split()[1])
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True)
class _Work:
    plan: ConversionPlan
    threads: int


_work_of_worker: list[_Work] = []


def _begin(gguf: Path, options: ConvertOptions, threads: int) -> None:
    """Make a worker ready. A run may still be hashing the source meanwhile."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    importlib.import_module(IMPORTS)
    _work_of_worker.append(_Work(ConversionPlan(SourceModel(GGUFFile(gguf)), options), threads))


def _end_with_parent() -> None:
    """End this process when the run that started it is gone."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _build(task: Task) -> None:
    """Build a part and leave its entry in a note, for whoever waits.

    A result that is more than a few bytes may be cut in two where a worker is ended in the middle of sending
    it, and who reads the half would wait for the rest for ever.
    """
    from anespec.convert.build import build_part

    (work,) = _work_of_worker
    write_note(task.path, build_part(work.plan, task.part, task.path, task.recipe, work.threads))
