"""What was asked before a source stood is not lost to it."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from drafting import OracleSession, SourceOf
from patience import PATIENCE
from toy_learner import ToyLearner
from toy_memory import SIZE

import anespec.runtime.drafters.starting as starting_module
from anespec.runtime.drafters import Outcome, TopKLogits
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.starting import MAX_PENDING_REQUESTS, StartingSource

NO_ROWS = TopKLogits(())


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started was compiled before."""
    monkeypatch.setattr(starting_module, "is_compiled", lambda name: True)


def vocabulary_memory(folder: Path) -> VocabularyMemory:
    return VocabularyMemory(ToyLearner(), SIZE, "0123456789abcdef", folder)


def requests(folder: Path, tenant: str) -> int:
    """Of a tenant, as the files have them."""
    return ToyLearner().facts(vocabulary_memory(folder).of(tenant).image).requests


class Learning(SourceOf):
    """Notes the texts of the sessions that were closed."""

    def __init__(self) -> None:
        super().__init__(lambda tenant, prompt: OracleSession(prompt, len(prompt)))
        self.is_closed = False

    @property
    def learnt(self) -> list[tuple[str, int]]:
        """Owners and lengths of the texts."""
        known = [session.known for session in self.sessions if session.closed]  # type: ignore[attr-defined]
        return [(tenant, length) for (tenant, _), length in zip(self.opened, known, strict=False)]

    def close(self) -> None:
        self.is_closed = True


def waiting_source() -> tuple[Learning, Callable[[], Learning], threading.Event]:
    """A source, what starts it, and the event that its start waits for."""
    source, may_stand = Learning(), threading.Event()

    def start() -> Learning:
        assert may_stand.wait(PATIENCE)
        return source

    return source, start, may_stand


def test_the_source_learns_once_it_stands_what_lookup_guessed_for() -> None:
    source, start, may_stand = waiting_source()
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
    source, start, may_stand = waiting_source()
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


def test_what_ends_before_it_stands_is_on_disk_at_its_end_and_learnt_once(tmp_path: Path) -> None:
    memory = vocabulary_memory(tmp_path)
    source, start, may_stand = waiting_source()
    starting = StartingSource("learning", start, memory)
    late = starting.open("late", [4, 4])
    for _ in range(MAX_PENDING_REQUESTS + 36):
        session = starting.open("one", [1, 2])
        session.observe([3], Outcome(), NO_ROWS)
        session.close()
    starting.open("two", [5, 6]).close()
    # A process that was killed now would have left these.
    assert [requests(tmp_path, tenant) for tenant in ("one", "two", "late")] == [
        MAX_PENDING_REQUESTS + 36,
        1,
        0,
    ]
    may_stand.set()
    starting.wait()
    late.close()
    assert requests(tmp_path, "late") == 1
    assert ToyLearner().facts(memory.of("one").image).requests == MAX_PENDING_REQUESTS + 36
    starting.close()
    assert source.learnt == [] and source.is_closed
    assert [requests(tmp_path, tenant) for tenant in ("one", "two", "late")] == [
        MAX_PENDING_REQUESTS + 36,
        1,
        1,
    ]


def test_nothing_is_kept_for_a_source_that_cannot_be_had(tmp_path: Path) -> None:
    def fail() -> Learning:
        raise RuntimeError("no compiler")

    starting = StartingSource("none", fail, vocabulary_memory(tmp_path))
    starting.wait()
    starting.open("one", [1, 2]).close()
    starting.close()
    assert requests(tmp_path, "one") == 0


def test_a_source_without_a_memory_says_of_how_many_requests_it_will_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, start, may_stand = waiting_source()
    starting = StartingSource("learning", start)
    with caplog.at_level(logging.INFO):
        for _ in range(3 * MAX_PENDING_REQUESTS):
            starting.open("one", [1]).close()
    may_stand.set()
    starting.close()
    assert len(source.learnt) == MAX_PENDING_REQUESTS
    assert [f"the last {MAX_PENDING_REQUESTS} of the requests" in said for said in caplog.messages] == [True]
