"""Hold the load of an engine and the counts of its passes; any thread may read them while passes run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from anespec.runtime.passes import PassPlan, Row, RowKind

MAX_TENANTS = 4096
"""Tenants whose counts are kept; for one more, the counts of the tenant that came first are dropped."""


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a kind that ran."""

    kind: RowKind
    count: int


@dataclass(frozen=True)
class PoolLoad:
    """The slots of a pool, by use.

    `slots` is their number. `running` slots hold tokens of running sequences, `kept` ones tokens of ended
    sequences, which later prompts may reuse.
    """

    pool: str
    slots: int
    running: int
    kept: int


@dataclass(frozen=True)
class ServiceLoad:
    """The current load of a service, and its counts since it was opened.

    `sequences` can run at a time; `active` ones run and `waiting` requests wait. `accepted` counts the draft
    rows that were right. The last pass was `last_width` rows wide; `last_rows` of them were not pads.
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
    """The counts of the passes that an engine ran, and of their rows."""

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
        """Add a pass, and these rows of it."""
        self.passes += 1
        for row in rows:
            self._rows[row.kind] += 1


class TenantCounts:
    """The counts of an engine's passes by tenant; a pass counts for each tenant with rows in it."""

    def __init__(self) -> None:
        self._counts: dict[str, PassCounts] = {}

    def of(self, tenant: str) -> PassCounts:
        """Return a tenant's counts for reading; any thread may call this."""
        return self._counts.get(tenant) or PassCounts()

    def growing(self, tenant: str) -> PassCounts:
        """Return a tenant's counts for adding to them; only the engine's thread may call this."""
        found = self._counts.get(tenant)
        if found is None:
            if len(self._counts) == MAX_TENANTS:
                del self._counts[next(iter(self._counts))]
            found = self._counts[tenant] = PassCounts()
        return found
