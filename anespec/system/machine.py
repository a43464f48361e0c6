"""Describe this machine: its name, processors and memory, and what this process uses of them."""

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
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_name() -> str:
    """Return the system and processor in one line, e.g. `Linux x86_64 AMD EPYC`. Kernels depend on them."""
    processor = platform.processor() or platform.machine()
    if platform.system() == "Linux":
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
                model = next((line for line in file if line.startswith("model name")), "")
            processor = model.partition(":")[2].strip() or processor
        except OSError:
            pass
    elif platform.system() == "Darwin":
        # Python reports only "arm", and Neural Engines differ from chip to chip.
        processor = _asked("machdep.cpu.brand_string") or processor
    return f"{platform.system()} {platform.machine()} {processor}".strip()


def system_build() -> str:
    """Return the release and build of macOS, e.g. `macOS 15.5 (24F74)`; for other systems their name.

    Core ML is a part of the system, and another build may compile and compute differently.
    """
    if platform.system() != "Darwin":
        return platform.system()
    return f"macOS {platform.mac_ver()[0]} ({_asked('kern.osversion') or 'unknown build'})"


@cache
def _asked(name: str) -> str:
    """Return values of `sysctl` on macOS; empty if there are none. Not run on a Mac yet."""
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], cwd=NEUTRAL_FOLDER, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


@dataclass(frozen=True)
class Surroundings:
    """The machine that figures were measured on.

    `load_before` is the load average before the measurement: other load distorts the figures.
    """

    machine: str
    processors: int
    load_before: float

    @classmethod
    def here(cls) -> Self:
        """Return the current facts of this machine."""
        return cls(machine_name(), processors(), round(os.getloadavg()[0], 1))

    def __str__(self) -> str:
        noun = "processor" if self.processors == 1 else "processors"
        return f"{self.machine}, {self.processors} {noun}, load {self.load_before} before"


def machine_memory() -> int:
    """Return the bytes of memory of this machine."""
    return int(psutil.virtual_memory().total)


def free_memory() -> int:
    """Return the bytes of memory that are available without swapping."""
    return int(psutil.virtual_memory().available)


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes.

    getrusage also counts the time before exec, and psutil has no peak, so Linux is asked for VmHWM. getrusage
    is in bytes on macOS, in kilobytes elsewhere.
    """
    if STATUS.exists():
        for line in STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def own_peak_memory() -> int:
    """Return the part of `peak_memory` that is not shared with other processes, in bytes.

    It assumes that as much was shared at the peak as is now.
    """
    now = psutil.Process().memory_full_info()
    return peak_memory() - max(0, now.rss - now.uss)
