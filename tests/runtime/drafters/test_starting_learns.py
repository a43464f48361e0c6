"""What was asked before a source stood is not lost to it."""

import threading

import pytest
from drafting import OracleSession, SourceOf

import anespec.runtime.drafters.starting as starting_module
from anespec.runtime.drafters import Outcome, RowTops
from anespec.runtime.drafters.starting import StartingSource

NO_ROWS = RowTops(())


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started was compiled before."""
    monkeypatch.setattr(starting_module, "is_compiled", lambda name: True)


class Learning(SourceOf):
    """Notes the texts of the sessions that were closed."""

    def __init__(self) -> None:
        super().__init__(lambda owner, prompt: OracleSession(prompt, len(prompt)))
        self.is_closed = False

    @property
    def learnt(self) -> list[tuple[str, int]]:
        """Owners and lengths of the texts."""
        known = [session.known for session in self.sessions if session.closed]  # type: ignore[attr-defined]
        return [(owner, length) for (owner, _), length in zip(self.opened, known, strict=False)]

    def close(self) -> None:
        self.is_closed = True


def test_the_source_learns_once_it_stands_what_lookup_guessed_for() -> None:
    source, may_stand = Learning(), threading.Event()

    def start() -> Learning:
        assert may_stand.wait(20)
        return source

    starting = StartingSource("learning", start)
    early = starting.open("one", [1, 2, 1])
    assert early.propose(2).source == "lookup"
    early.observe([2, 1], Outcome(), NO_ROWS)
    starting.open("two", [5]).close()
    early.close()
    may_stand.set()
    starting.wait()
    assert source.learnt == [("two", 1), ("one", 5)], "before anybody else asks it"
    starting.open("three", [7, 8]).close()
    assert source.learnt == [("two", 1), ("one", 5), ("three", 2)]
    starting.close()
    assert source.is_closed


def test_a_source_that_stands_only_at_the_end_learns_too() -> None:
    source, may_stand = Learning(), threading.Event()

    def start() -> Learning:
        assert may_stand.wait(20)
        return source

    starting = StartingSource("learning", start)
    starting.open("one", [1, 2]).close()
    may_stand.set()
    starting.close()
    assert source.is_closed and source.learnt == [("one", 2)]


def test_nothing_waits_where_the_source_cannot_be_had() -> None:
    def fail() -> Learning:
        raise RuntimeError("no compiler")

    starting = StartingSource("none", fail)
    starting.wait()
    starting.open("one", [1]).close()
    starting.close()
