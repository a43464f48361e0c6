"""Shared parts of the benchmarks: summaries of timings, facts about the machine, printing."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anespec.system.machine import Surroundings

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""The bytes of the unit of getrusage's ru_maxrss."""


@dataclass(frozen=True)
class Timing:
    """Repeated wall times of one thing, in milliseconds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median time."""
        return statistics.median(self.samples)

    @property
    def least(self) -> float:
        """Return the shortest time, which was disturbed least."""
        return min(self.samples)

    def as_json(self) -> dict[str, float | int]:
        """Return median, minimum and count."""
        return {
            "median_ms": round(self.median, 3),
            "min_ms": round(self.least, 3),
            "repetitions": len(self.samples),
        }


def gigabytes(count: int) -> str:
    """Format bytes in units of 10^9."""
    return f"{count / 1e9:.2f} GB"


def machine() -> dict[str, Any]:
    """Return the facts of the machine, with its load, since other load distorts the figures."""
    return asdict(Surroundings.here())


def describe(machine: Mapping[str, Any]) -> str:
    """Return the machine in one line."""
    return str(Surroundings(**machine))


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns: the first aligned left, the others right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join((row[0].ljust(len(first)), *rest)))


@dataclass(frozen=True)
class Budget:
    """A measured ratio and its limit (docs/DESIGN.md, section 9)."""

    name: str
    measured: float
    limit: float

    def as_json(self) -> dict[str, str | float | bool]:
        """Return the figures, and whether the limit is kept."""
        return {
            "name": self.name,
            "measured": round(self.measured, 3),
            "limit": self.limit,
            "kept": self.measured <= self.limit,
        }


def show_budgets(budgets: Sequence[Budget]) -> None:
    """Print the figures with their limits."""
    rows = [
        (b.name, f"{b.measured:.2f}", f"<= {b.limit:.2f}", "" if b.measured <= b.limit else "OVER")
        for b in budgets
    ]
    show_table(("budget", "measured", "limit", ""), rows)


def emit(report: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(report, indent=2))
