"""This machine's processors and memory, and what of them this process may use and has used."""

import os
import resource
import sys
from pathlib import Path

PROC = Path("/proc")


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes.

    Linux's own count also has what the process was before it became this program, so /proc is asked.
    macOS counts bytes, others kilobytes.
    """
    if (peak := _fields(PROC / "self" / "status").get("VmHWM")) is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def own_peak_memory() -> int:
    """The part of `peak_memory` that no other process has too; all of it where the system does not tell.

    What is now shared is taken to have been shared at the peak.
    """
    fields = _fields(PROC / "self" / "smaps_rollup")
    return peak_memory() - fields.get("Shared_Clean", 0) - fields.get("Shared_Dirty", 0)


def free_memory() -> int:
    """Bytes that can be had without swapping; half of all where the system does not tell."""
    available = _fields(PROC / "meminfo").get("MemAvailable")
    if available is not None:
        return available
    return (machine_memory() or 0) // 2


def _fields(path: Path) -> dict[str, int]:
    """The lines `name: number kB` of a file of /proc, in bytes; none where there is no such file."""
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    return {name: 1024 * int(text.split()[0]) for name, text in pairs if text.endswith(" kB")}
