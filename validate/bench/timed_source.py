"""Wrap a draft source to limit its drafts or to time its calls."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, Outcome, TopKLogits, weigh


class BoundedSource:
    """A draft source that limits another source's drafts to `most` tokens.

    `most` may be changed between two requests.
    """

    def __init__(self, source: DraftSource, most: int) -> None:
        """Wrap `source`, which the caller closes."""
        self._source = source
        self.most = most

    @property
    def name(self) -> str:
        """Return the wrapped source's name."""
        return self._source.name

    @property
    def cost(self) -> DraftCost:
        """Return the wrapped source's cost."""
        return self._source.cost

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        """Open a session of the wrapped source."""
        return self._source.open(tenant, prompt, reference)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return the wrapped source's drafts, of `most` tokens at most."""
        return self._source.propose([(session, min(budget, self.most)) for session, budget in asks])

    def weigh(self, token_seconds: float) -> None:
        """Pass the time of a token on."""
        weigh(self._source, token_seconds)

    def close(self) -> None:
        """Do nothing: the caller closes the wrapped source."""


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a duration in microseconds; zero if it was never measured."""

    median: float = 0.0
    p99: float = 0.0


@dataclass
class Samples:
    """The measured durations of one kind of call, in nanoseconds."""

    _taken: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, began: int, shared_by: int = 1) -> None:
        """Add the time since `began` (of perf_counter_ns), divided by the number of tokens that share it."""
        self._taken.append((perf_counter_ns() - began) / max(1, shared_by))

    @property
    def quantiles(self) -> Quantiles:
        """Return the quantiles of all samples."""
        if not self._taken:
            return Quantiles()
        ordered = sorted(self._taken)
        return Quantiles(median(ordered) / 1e3, ordered[len(ordered) * 99 // 100] / 1e3)


@dataclass(frozen=True)
class SourceTimes:
    """The times of a source's calls.

    `proposal` is per proposal, `opening` per prompt token, `observing` per token, `closing` per session.
    """

    proposal: Samples = field(default_factory=Samples)
    opening: Samples = field(default_factory=Samples)
    observing: Samples = field(default_factory=Samples)
    closing: Samples = field(default_factory=Samples)


class TimedSource:
    """A draft source that times the calls of another one."""

    def __init__(self, source: DraftSource) -> None:
        """Wrap `source`, which the caller closes."""
        self.source = source
        self.times = SourceTimes()

    @property
    def name(self) -> str:
        """Return the wrapped source's name."""
        return self.source.name

    @property
    def cost(self) -> DraftCost:
        """Return the wrapped source's cost."""
        return self.source.cost

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "TimedSession":
        """Open a session of the wrapped source."""
        began = perf_counter_ns()
        session = self.source.open(tenant, prompt, reference)
        self.times.opening.add(began, len(prompt))
        return TimedSession(self, session)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return the wrapped source's drafts. Raises TypeError for a session of another source."""
        inner = [(_own(session).session, budget) for session, budget in asks]
        began = perf_counter_ns()
        drafts = self.source.propose(inner)
        self.times.proposal.add(began, len(asks))
        return drafts

    def close(self) -> None:
        """Do nothing: the caller closes the wrapped source."""


class TimedSession:
    """A session that times the calls of the wrapped source's session."""

    def __init__(self, source: TimedSource, session: DraftSession) -> None:
        self._source = source
        self.session = session

    @property
    def wants_top(self) -> int:
        """Return how many top logits the wrapped session needs."""
        return self.session.wants_top

    def propose(self, budget: int) -> Draft:
        """Return the wrapped session's draft."""
        (draft,) = self._source.propose([(self, budget)])
        return draft

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Pass the observation on."""
        began = perf_counter_ns()
        self.session.observe(committed, outcome, rows)
        self._source.times.observing.add(began, len(committed))

    def close(self) -> None:
        """Close the wrapped session."""
        began = perf_counter_ns()
        self.session.close()
        self._source.times.closing.add(began)


def _own(session: DraftSession) -> TimedSession:
    if not isinstance(session, TimedSession):
        raise TypeError("the session was opened by another source")
    return session
