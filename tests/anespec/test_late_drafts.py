"""A draft source is late by what it computes; a busy machine lets it wait, and that is no fault of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from anespec.runtime.drafters import Draft, DraftCost, DraftSession
from anespec.runtime.engine.proposals import (
    LATE_FLOOR,
    LATE_WAITING,
    MAX_LATE,
    LateError,
    Speculation,
)
from anespec.runtime.speculation.policy import DraftPolicy

COST = DraftCost(microseconds=1.0)


@dataclass
class Times:
    """What the clocks show: seconds that have passed, and those of them that the thread has computed."""

    passed: float = 0.0
    computed: float = 0.0


@dataclass
class SlowSource:
    """A source whose proposals take so many seconds, and compute for some of them."""

    times: Times
    passes: float
    computes: float
    name: str = "slow"
    cost: DraftCost = COST

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        raise NotImplementedError

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        self.times.passed += self.passes
        self.times.computed += self.computes
        return []

    def close(self) -> None:
        pass


def asking(source: SlowSource) -> Callable[[], list[Draft]]:
    """Asks the source as the engine does."""
    times = source.times
    speculation = Speculation(source, DraftPolicy(1, ()), 1, lambda: times.passed, lambda: times.computed)
    return lambda: speculation._in_time(source, [])


@pytest.mark.parametrize(
    ("passes", "computes"), [(1.1 * LATE_FLOOR, 1.1 * LATE_FLOOR), (1.1 * LATE_WAITING * LATE_FLOOR, 0.0)]
)
def test_one_that_computes_long_or_waits_very_long_is_late(passes: float, computes: float) -> None:
    ask = asking(SlowSource(Times(), passes, computes))
    for _ in range(MAX_LATE):
        assert ask() == []
    with pytest.raises(LateError, match="slow took"):
        ask()


def test_one_that_gets_no_processor_for_a_while_is_not_late() -> None:
    ask = asking(SlowSource(Times(), 0.9 * LATE_WAITING * LATE_FLOOR, 0.9 * LATE_FLOOR))
    for _ in range(10 * (MAX_LATE + 1)):
        assert ask() == []
