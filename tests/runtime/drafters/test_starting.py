"""A source that takes its time to start holds nobody up, and lookup guesses meanwhile."""

import logging
import threading
from collections.abc import Sequence

import pytest

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, propose_each
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.drafters.starting import StartingSource


class Started:
    """A source that says when it is closed."""

    name = "started"
    cost = DraftCost(microseconds=7)

    def __init__(self) -> None:
        self.closed = 0

    def open(self, owner: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> DraftSession:
        return LookupSource().open(owner, [*prompt, *prompt])

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        return propose_each(asks)

    def close(self) -> None:
        self.closed += 1


def test_lookup_guesses_until_it_stands() -> None:
    may_start = threading.Event()
    started = Started()

    def start() -> DraftSource:
        may_start.wait()
        return started

    source = StartingSource("started", start)
    early = source.open("me", [1, 2, 3])
    assert source.cost == LookupSource.cost
    assert source.propose([(early, 2)]) == [Draft()]
    may_start.set()
    source.wait()
    assert source.cost == started.cost
    late = source.open("me", [1, 2, 3])
    drafts = source.propose([(early, 2), (late, 2)])
    assert [draft.tokens for draft in drafts] == [(), (1, 2)]
    source.close()
    source.close()
    assert started.closed == 1


def test_it_is_closed_also_where_it_is_given_up_before_it_stands() -> None:
    may_start = threading.Event()
    started = Started()

    def start() -> DraftSource:
        may_start.wait()
        return started

    source = StartingSource("started", start)
    closing = threading.Thread(target=source.close)
    closing.start()
    may_start.set()
    closing.join()
    assert started.closed == 1


def test_lookup_goes_on_where_it_cannot_start(caplog: pytest.LogCaptureFixture) -> None:
    def start() -> DraftSource:
        raise OSError("no compiler today")

    source = StartingSource("started", start)
    with caplog.at_level(logging.WARNING):
        source.wait()
    assert "no compiler today" in caplog.text
    assert source.open("me", [4, 4]).propose(1).tokens == (4,)
    source.close()
