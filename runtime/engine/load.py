"""The load of an engine and the counts of its work: integers that any thread may read while passes run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anespec.runtime.passes import PassPlan, Row, RowKind

MOST_OWNERS = 4096
"""Owners whose counts are kept; beyond that, those of the tenant that came first are dropped."""


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a kind that ran."""

    kind: RowKind
    count: int


@dataclass(frozen=True)
class PoolLoad:
    """The slots of a pool: all of them, those that hold tokens of sequences that run, and those that hold
    what ended sequences left for later prompts."""

    pool: str
    slots: int
    running: int
    kept: int


@dataclass(frozen=True)
class ServiceLoad:
    """The current load of a service, and its counts since it was opened.

    `waiting` requests wait for one of the `sequences` that can run at a time; `active` ones run. `accepted`
    draft rows were right. The last pass had `last_rows` rows that were not pads, of `last_width`.
    """

    waiting: int
    active: int
    sequences: int
    passes: int = 0
    rows: tuple[RowCount, ...] = ()
    accepted: int = 0
    last_rows: int = 0
    last_width: int = 0
    states_lost: int = 0
    pools: tuple[PoolLoad, ...] = ()


@dataclass
class PassCounts:
    """The passes that an engine ran."""

    passes: int = 0
    accepted: int = 0
    states_lost: int = 0
    last_rows: int = 0
    last_width: int = 0
    _rows: dict[RowKind, int] = field(default_factory=lambda: dict.fromkeys(RowKind, 0))

    @property
    def rows(self) -> tuple[RowCount, ...]:
        """The number of rows that ran, by kind."""
        return tuple(RowCount(kind, self._rows[kind]) for kind in RowKind)

    def count(self, plan: PassPlan) -> None:
        """Add a pass that was run."""
        self.last_rows, self.last_width = len(plan.rows), plan.width
        self.count_rows(plan.rows)
        self._rows[RowKind.PAD] += plan.width - len(plan.rows)

    def count_rows(self, rows: Sequence[Row]) -> None:
        """Add a pass of which these rows count."""
        self.passes += 1
        for row in rows:
            self._rows[row.kind] += 1


class OwnerCounts:
    """The passes that an engine ran, by the tenants of the sequences that had rows in them."""

    def __init__(self) -> None:
        self._counts: dict[str, PassCounts] = {}

    def of(self, tenant: str) -> PassCounts:
        """Return a tenant's counts, to be read; from any thread."""
        return self._counts.get(tenant) or PassCounts()

    def growing(self, tenant: str) -> PassCounts:
        """Return a tenant's counts, to be added to; for the engine's thread."""
        found = self._counts.get(tenant)
        if found is None:
            if len(self._counts) == MOST_OWNERS:
                del self._counts[next(iter(self._counts))]
            found = self._counts[tenant] = PassCounts()
        return found
