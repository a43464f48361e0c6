"""What the benchmarks share: summaries of timings, one-line facts about the machine, printing."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anespec.system.machine import Surroundings

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of the unit in which a process's largest resident set is told."""


@dataclass(frozen=True)
class Timing:
    """Repeated wall times of one thing, in milliseconds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The typical time."""
        return statistics.median(self.samples)

    @property
    def least(self) -> float:
        """The time with the least disturbance."""
        return min(self.samples)

    def as_json(self) -> dict[str, float | int]:
        """Median, minimum and count."""
        return {
            "median_ms": round(self.median, 3),
            "min_ms": round(self.least, 3),
            "repetitions": len(self.samples),
        }


def gigabytes(count: int) -> str:
    """Bytes for a person, in units of 10^9."""
    return f"{count / 1e9:.2f} GB"


def machine() -> dict[str, Any]:
    """Where the numbers hold, and the load that was there before: others at work spoil them."""
    return asdict(Surroundings.here())


def describe(machine: Mapping[str, Any]) -> str:
    """The machine in one line."""
    return str(Surroundings(**machine))


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns: the first to the left, figures to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join((row[0].ljust(len(first)), *rest)))


@dataclass(frozen=True)
class Budget:
    """A measured ratio beside its limit (docs/DESIGN.md, section 9)."""

    name: str
    measured: float
    limit: float

    def as_json(self) -> dict[str, str | float | bool]:
        """The same, with whether it is kept."""
        return {
            "name": self.name,
            "measured": round(self.measured, 3),
            "limit": self.limit,
            "kept": self.measured <= self.limit,
        }


def show_budgets(budgets: Sequence[Budget]) -> None:
    """Print figures beside their limits."""
    rows = [
        (b.name, f"{b.measured:.2f}", f"<= {b.limit:.2f}", "" if b.measured <= b.limit else "OVER")
        for b in budgets
    ]
    show_table(("budget", "measured", "limit", ""), rows)


def emit(report: Mapping[str, object]) -> None:
    """Print one JSON object."""
    print(json.dumps(report, indent=2))
