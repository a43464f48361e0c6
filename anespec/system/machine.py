"""This machine's name, processors and memory, and what of them this process may use and has used."""

import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import psutil

from anespec.system.child_python import NEUTRAL_FOLDER

STATUS = Path("/proc/self/status")


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_name() -> str:
    """Processor and system in one line, e.g. `Linux x86_64 AMD EPYC`; what kernels depend on."""
    processor = platform.processor() or platform.machine()
    if platform.system() == "Linux":
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
                model = next((line for line in file if line.startswith("model name")), "")
            processor = model.partition(":")[2].strip() or processor
        except OSError:
            pass
    elif platform.system() == "Darwin":
        # What Python knows is "arm" alone, and Neural Engines differ from chip to chip.
        processor = _asked("machdep.cpu.brand_string") or processor
    return f"{platform.system()} {platform.machine()} {processor}".strip()


def system_build() -> str:
    """The release of macOS with its build, e.g. `macOS 15.5 (24F74)`; of other systems their name.

    Core ML is a part of the system, and another build of it may compile and compute otherwise.
    """
    if platform.system() != "Darwin":
        return platform.system()
    return f"macOS {platform.mac_ver()[0]} ({_asked('kern.osversion') or 'unknown build'})"


@cache
def _asked(name: str) -> str:
    """Return values of `sysctl` on macOS; empty if there are none. Not run on a Mac yet."""
    try:
        told = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], cwd=NEUTRAL_FOLDER, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return told.stdout.strip()


@dataclass(frozen=True)
class Surroundings:
    """The machine that figures were measured on. `load_before` is the number of programs that wanted a
    processor before the measurement: other load distorts figures."""

    machine: str
    processors: int
    load_before: float

    @classmethod
    def here(cls) -> Self:
        """Of this machine, now."""
        return cls(machine_name(), processors(), round(os.getloadavg()[0], 1))

    def __str__(self) -> str:
        noun = "processor" if self.processors == 1 else "processors"
        return f"{self.machine}, {self.processors} {noun}, load {self.load_before} before"


def machine_memory() -> int:
    """Bytes of memory of this machine."""
    return int(psutil.virtual_memory().total)


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes.

    The count that all systems keep also has what the process was before it became this program, and psutil
    knows no peak; so Linux is asked for its other count. macOS counts bytes, others kilobytes.
    """
    if STATUS.exists():
        for line in STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def own_peak_memory() -> int:
    """The part of `peak_memory` that no other process has too.

    What is now shared is taken to have been shared at the peak.
    """
    now = psutil.Process().memory_full_info()
    return peak_memory() - max(0, now.rss - now.uss)
