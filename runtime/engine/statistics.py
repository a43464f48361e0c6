"""Count the passes of an engine and the tokens of its sequences, and return snapshots of the counts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from anespec.runtime.kv.region_store import PoolLoad
from anespec.runtime.passes import PassPlan, Row, RowKind
from anespec.system.formatting import counted

MAX_TENANTS = 4096
"""Tenants whose counts are kept; for one more, the counts of the tenant that came first are dropped."""


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a kind that ran."""

    kind: RowKind
    count: int


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


@dataclass(frozen=True)
class SourceCount:
    """The number of draft rows that one source filled, and the number of them that were right."""

    source: str
    proposed: int
    accepted: int


@dataclass(frozen=True)
class RequestStats:
    """The costs and results of a sequence so far; final in the event with its finish reason.

    A pass that ran prompt rows of the sequence is a prompt pass, any other one a decode pass. The first token
    comes from the last prompt pass. `decoded_tokens` counts the tokens of decode passes, a final end token
    included. `proposed_by_position[i]` counts the drafts whose token number i was run,
    `accepted_by_position[i]` the drafts in which it was right. `remembered_tokens` counts right draft tokens
    that came from the draft memory. `reused_tokens` tokens of the prompt needed no prefill; for that
    `copied_slots` slots were copied or written back. `draft_failures` counts how often drafts failed or came
    late; `drafter_error` is the last reason.

    `queue_seconds` is the time of waiting for a region, `prefill_seconds` the time from then to the first
    token, `decode_seconds` the time after it. They include the work of the same passes for other sequences.
    """

    prompt_tokens: int
    reused_tokens: int = 0
    copied_slots: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    prompt_passes: int = 0
    decode_passes: int = 0
    decoded_tokens: int = 0
    remembered_tokens: int = 0
    proposed_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    by_source: tuple[SourceCount, ...] = ()
    states_lost: int = 0
    draft_failures: int = 0
    drafter_error: str | None = None
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def passes(self) -> int:
        """The number of passes in which the sequence had rows."""
        return self.prompt_passes + self.decode_passes

    @property
    def tokens_per_pass(self) -> float:
        """The tokens per decode pass: exactly 1 without drafts and forced tokens, 0 without decode passes."""
        return self.decoded_tokens / self.decode_passes if self.decode_passes else 0.0

    def per_pass_text(self, unit: str) -> str:
        """Return `tokens_per_pass` with its unit, and "from memory" if most right drafts came from there."""
        replayed = 2 * self.remembered_tokens > self.accepted
        return f"{self.tokens_per_pass:.2f} {unit}{' from memory' if replayed else ''}"

    def decode_text(self) -> str:
        """Return a clause about the decode passes: their number, and their tokens, all and for each.

        A number of tokens and of passes alone would not give `tokens_per_pass`: prompt passes make tokens,
        too.
        """
        if not self.decode_passes:
            return "all from the prompt's"
        tokens = counted(self.decoded_tokens, "token")
        return f"{tokens} from {self.decode_passes} after the prompt's, {self.per_pass_text('each')}"

    @property
    def proposed(self) -> int:
        """The number of draft rows that ran."""
        return sum(self.proposed_by_position)

    @property
    def accepted(self) -> int:
        """The number of draft rows that were right."""
        return sum(self.accepted_by_position)


@dataclass
class RequestCounts:
    """The counts of RequestStats while a sequence runs."""

    prompt_tokens: int
    reused_tokens: int = 0
    copied_slots: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    prompt_passes: int = 0
    decode_passes: int = 0
    decoded_tokens: int = 0
    remembered_tokens: int = 0
    states_lost: int = 0
    draft_failures: int = 0
    drafter_error: str | None = None
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    _proposed: list[int] = field(default_factory=list)
    _accepted: list[int] = field(default_factory=list)
    _by_source: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count_draft(self, source: str, proposed: int, accepted: int) -> None:
        """Add one pass's draft rows."""
        if not proposed:
            return
        missing = [0] * (proposed - len(self._proposed))
        self._proposed += missing
        self._accepted += missing
        for i in range(proposed):
            self._proposed[i] += 1
            self._accepted[i] += i < accepted
        before = self._by_source.get(source, (0, 0))
        self._by_source[source] = (before[0] + proposed, before[1] + accepted)

    def snapshot(self) -> RequestStats:
        """Return the current counts."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return RequestStats(
            **counts,
            proposed_by_position=tuple(self._proposed),
            accepted_by_position=tuple(self._accepted),
            by_source=tuple(SourceCount(name, *pair) for name, pair in self._by_source.items()),
        )


_COUNTS = tuple(each.name for each in fields(RequestCounts) if not each.name.startswith("_"))
"""The fields that RequestCounts and RequestStats share."""
