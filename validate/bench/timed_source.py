"""A draft source under a stopwatch."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, Outcome, TopKLogits


class BoundedSource:
    """Another source, whose drafts have `most` tokens at most; it may be changed between two requests."""

    def __init__(self, source: DraftSource, most: int) -> None:
        """The caller closes `source`."""
        self._source = source
        self.most = most

    @property
    def name(self) -> str:
        """The other's."""
        return self._source.name

    @property
    def cost(self) -> DraftCost:
        """The other's."""
        return self._source.cost

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        """A session of the other."""
        return self._source.open(tenant, prompt, reference)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """The other's drafts, within this limit too."""
        return self._source.propose([(session, min(budget, self.most)) for session, budget in asks])

    def close(self) -> None:
        """Do nothing: the caller closes the other."""


@dataclass(frozen=True)
class Quantiles:
    """How long something took, in microseconds; zero where it never ran."""

    median: float = 0.0
    p99: float = 0.0


@dataclass
class Samples:
    """Nanoseconds of one thing done many times."""

    _taken: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, began: int, shared_by: int = 1) -> None:
        """What `began` then, on the clock of perf_counter_ns, ends now; it is shared by so many tokens."""
        self._taken.append((perf_counter_ns() - began) / max(1, shared_by))

    @property
    def quantiles(self) -> Quantiles:
        """Of all samples."""
        if not self._taken:
            return Quantiles()
        ordered = sorted(self._taken)
        return Quantiles(median(ordered) / 1e3, ordered[len(ordered) * 99 // 100] / 1e3)


@dataclass(frozen=True)
class SourceTimes:
    """The times of a source: per proposal, opening per prompt token, observing per token, per closed
    session."""

    proposal: Samples = field(default_factory=Samples)
    opening: Samples = field(default_factory=Samples)
    observing: Samples = field(default_factory=Samples)
    closing: Samples = field(default_factory=Samples)


class TimedSource:
    """Another source, whose calls are timed."""

    def __init__(self, source: DraftSource) -> None:
        """The caller closes `source`."""
        self.source = source
        self.times = SourceTimes()

    @property
    def name(self) -> str:
        """The other's."""
        return self.source.name

    @property
    def cost(self) -> DraftCost:
        """The other's."""
        return self.source.cost

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "TimedSession":
        """A session of the other."""
        began = perf_counter_ns()
        session = self.source.open(tenant, prompt, reference)
        self.times.opening.add(began, len(prompt))
        return TimedSession(self, session)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """The other's drafts. Raises TypeError for a session that is none of this source's."""
        inner = [(_own(session).session, budget) for session, budget in asks]
        began = perf_counter_ns()
        drafts = self.source.propose(inner)
        self.times.proposal.add(began, len(asks))
        return drafts

    def close(self) -> None:
        """Do nothing: the caller closes the other."""


class TimedSession:
    """Another source's session."""

    def __init__(self, source: TimedSource, session: DraftSession) -> None:
        self._source = source
        self.session = session

    @property
    def wants_top(self) -> int:
        """The other's."""
        return self.session.wants_top

    def propose(self, budget: int) -> Draft:
        """The other's draft."""
        (draft,) = self._source.propose([(self, budget)])
        return draft

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """The other observes."""
        began = perf_counter_ns()
        self.session.observe(committed, outcome, rows)
        self._source.times.observing.add(began, len(committed))

    def close(self) -> None:
        """The other closes."""
        began = perf_counter_ns()
        self.session.close()
        self._source.times.closing.add(began)


def _own(session: DraftSession) -> TimedSession:
    if not isinstance(session, TimedSession):
        raise TypeError("a session that this source did not open")
    return session
