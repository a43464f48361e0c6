"""What starting a shard takes in a process: loading it, and the first pass of each width.

Core ML may make a model anew for a width at its first pass in a process, which takes others minutes
(ane-book Exp. 26, grade B), so these are measured at every start and kept beside the compiled shard.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from anespec.manifests.schema import Count, Record
from anespec.system.formatting import counted, duration_text, listed

LONG_START = 10.0
"""Seconds of a start that a person is told of without asking."""

REUSED = 0.5
"""A second process that starts in less than this share of the first one's time reuses what that left."""


class FirstPass(Record):
    """The first pass of so many rows in a process."""

    rows: Count
    seconds: float = Field(ge=0)


class StartTimes(Record):
    """What one process took: to load, and for the first pass of each width."""

    load_seconds: float = Field(ge=0)
    passes: tuple[FirstPass, ...] = ()

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.load_seconds + sum(each.seconds for each in self.passes)

    def __str__(self) -> str:
        if not self.passes:
            return f"loading {duration_text(self.load_seconds)}"
        times = [f"{duration_text(each.seconds)} ({counted(each.rows, 'row')})" for each in self.passes]
        return f"loading {duration_text(self.load_seconds)}, first passes {listed(times)}"


@dataclass(frozen=True)
class Starts:
    """What starting an artifact took in the process that met it first, and in the last one since, if any."""

    first: StartTimes
    last: StartTimes | None = None

    @property
    def expected(self) -> StartTimes:
        """What the next start will take, as far as is known."""
        return self.last or self.first

    @property
    def is_long(self) -> bool:
        """Whether the next start takes so long that a person should know."""
        return self.expected.seconds >= LONG_START

    def __str__(self) -> str:
        if self.last is None:
            return f"the first process took {self.first}"
        return f"the first process took {self.first}; the last one since {self.last}"


def added_up(starts: Iterable[StartTimes]) -> StartTimes | None:
    """All shards' starts, as if one after the other; None of none."""
    all_starts = tuple(starts)
    if not all_starts:
        return None
    by_rows: dict[int, float] = {}
    for each in (each for start in all_starts for each in start.passes):
        by_rows[each.rows] = by_rows.get(each.rows, 0.0) + each.seconds
    return StartTimes(
        load_seconds=sum(start.load_seconds for start in all_starts),
        passes=tuple(FirstPass(rows=rows, seconds=seconds) for rows, seconds in sorted(by_rows.items())),
    )
