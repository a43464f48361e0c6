"""Run a command and measure wall time, processor time and memory of all its processes."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from measure import MAXRSS_UNIT

PROC = Path("/proc")
POLL_SECONDS = 0.03


@dataclass(frozen=True)
class TreeRun:
    """The result of one command.

    `peak` is the largest memory in bytes that its processes held together, with mapped file pages, where
    shared pages count once. `peak_own` excludes file pages. `cpu_seconds` is the processor time of all.
    Sampled every 30 ms on Linux. Elsewhere `peak` is that of the largest process, and the others are 0.
    """

    seconds: float
    cpu_seconds: float
    peak: int
    peak_own: int


@dataclass
class _Sampler(threading.Thread):
    """Samples the memory and processor time of a process and its descendants until `done` is set."""

    root: int
    peak: int = 0
    peak_own: int = 0
    cpu: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self.done.wait(POLL_SECONDS):
            total = own = 0
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(self.root)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error, OSError):
                        times = process.cpu_times()
                        self.cpu[process.pid] = times.user + times.system
                        shares = memory(process.pid)
                        total, own = total + shares.get("Pss", 0), own + shares.get("Pss_Anon", 0)
            self.peak, self.peak_own = max(self.peak, total), max(self.peak_own, own)


def run_tree(command: Sequence[str]) -> TreeRun:
    """Run a command to its end; raises SystemExit if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    sampler = _Sampler(process.pid)
    if PROC.is_dir():
        sampler.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    sampler.done.set()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    if sys.platform != "linux":
        return TreeRun(seconds, 0, usage.ru_maxrss * MAXRSS_UNIT, 0)
    sampler.join()
    return TreeRun(seconds, sum(sampler.cpu.values()), sampler.peak, sampler.peak_own)


def memory(pid: int) -> dict[str, int]:
    """Return a process's proportional shares of memory in bytes; psutil does not return Pss_Anon."""
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    return {name: 1024 * int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
