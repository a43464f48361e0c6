"""Run all work with MLX on one thread of this process.

MLX keeps its streams and its compiled functions per thread. An array that one thread has described but not
computed cannot be computed by another one ("There is no Stream(cpu, 0) in current thread"), and a compiled
function that another thread frees stays in the memory of its own. The engine has a thread of its own, and
models are opened, probed and closed by other threads.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import mlx.core as mx

Result = TypeVar("Result")


class Worker:
    """A thread that runs what it is given, in order. It never ends: MLX frees a thread's objects badly."""

    def __init__(self) -> None:
        """Start the thread, which does not keep the process alive."""
        self._works: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="anespec mlx", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> "Future[Result]":
        """Return the future result of `work`, which may already be running."""
        future: Future[Result] = Future()
        self._works.put((work, future))
        return future

    def call(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, or raise its error; the worker's own thread runs it at once."""
        if threading.current_thread() is self._thread:
            return work()
        return self.submit(work).result()

    def _run(self) -> None:
        while True:
            work, future = self._works.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            # What a work holds must not live until the next one.
            del work, future


_lock = threading.Lock()
_worker: Worker | None = None


def worker() -> Worker:
    """Return the process's worker; a forked process gets its own."""
    global _worker
    with _lock:
        if _worker is None:
            _worker = Worker()
        return _worker


def _forget() -> None:
    global _worker, _lock
    _lock, _worker = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)


def on_gpu() -> bool:
    """Return whether MLX computes on a GPU: on a Mac, unless its system offers none, as in some VMs."""
    return bool(mx.default_device().type == mx.DeviceType.gpu)
