"""How long a shard takes to start in a process: loading it, and the first pass of each width.

Core ML may prepare a model anew for a width at its first pass in a process; others measured minutes (ane-book
Exp. 26, grade B). So the times are measured at every start and recorded beside the compiled shard.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from anespec.manifests.schema import Count, Record
from anespec.system.formatting import counted, duration_text, listed

LONG_START = 10.0
"""Seconds from which the expected duration of a start is shown to the user."""

REUSE_FRACTION = 0.5
"""A later process that starts in less than this fraction of the first one's time reused its work."""


class FirstPass(Record):
    """The duration of the first pass of `rows` rows in a process."""

    rows: Count
    seconds: float = Field(ge=0)


class StartTimes(Record):
    """The times of one process: to load, and for the first pass of each width."""

    load_seconds: float = Field(ge=0)
    passes: tuple[FirstPass, ...] = ()

    @property
    def seconds(self) -> float:
        """The sum of all times."""
        return self.load_seconds + sum(each.seconds for each in self.passes)

    def __str__(self) -> str:
        if not self.passes:
            return f"loading {duration_text(self.load_seconds)}"
        times = [f"{duration_text(each.seconds)} ({counted(each.rows, 'row')})" for each in self.passes]
        return f"loading {duration_text(self.load_seconds)}, first passes {listed(times)}"


@dataclass(frozen=True)
class Starts:
    """The start times of an artifact in the first process that loaded it, and in the latest one, if any."""

    first: StartTimes
    last: StartTimes | None = None

    @property
    def expected(self) -> StartTimes:
        """The estimate for the next start."""
        return self.last or self.first

    @property
    def is_long(self) -> bool:
        """Whether the next start is expected to take so long that the user should be told."""
        return self.expected.seconds >= LONG_START

    def __str__(self) -> str:
        if self.last is None:
            return f"the first process took {self.first}"
        return f"the first process took {self.first}; the latest one {self.last}"


def added_up(starts: Iterable[StartTimes]) -> StartTimes | None:
    """Return the sum of all shards' start times; None if `starts` is empty."""
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
