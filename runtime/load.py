"""How much an engine has to do, and what it has run: integers that any thread may read while passes run."""

from dataclasses import dataclass, field

from anespec.runtime.passes import PassPlan, RowKind


@dataclass(frozen=True)
class RowCount:
    """How many rows of a kind were run."""

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
    """What a service has to do now, and what it has done since it was opened.

    `waiting` requests wait for one of the `sequences` that can run at a time, of which `active` do.
    `accepted` draft rows were right. The last pass had `last_rows` rows that were not pads, of `last_width`.
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
        """How many rows were run, by kind."""
        return tuple(RowCount(kind, self._rows[kind]) for kind in RowKind)

    def count(self, plan: PassPlan) -> None:
        """Add a pass that was run."""
        self.passes += 1
        self.last_rows, self.last_width = len(plan.rows), plan.width
        for row in plan.rows:
            self._rows[row.kind] += 1
        self._rows[RowKind.PAD] += plan.width - len(plan.rows)
