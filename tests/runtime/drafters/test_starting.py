"""A source that takes its time to start holds nobody up, and lookup guesses meanwhile."""

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import anespec.runtime.drafters.starting as starting
from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource, kept_code, propose_each
from anespec.runtime.drafters.lookup import LookupSession, LookupSource
from anespec.runtime.drafters.starting import StartingSource


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started was compiled before."""
    monkeypatch.setattr(starting, "is_compiled", lambda name: True)


@pytest.fixture
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was compiled here so far."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kept_code.code_folder.cache_clear()
    yield
    kept_code.code_folder.cache_clear()


class Started:
    """A source that says when it is closed."""

    name = "started"
    cost = DraftCost(microseconds=7)

    def __init__(self) -> None:
        self.closed = 0

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        return LookupSource().open(tenant, [*prompt, *prompt])

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        return propose_each(asks)

    def close(self) -> None:
        self.closed += 1


def test_lookup_guesses_until_it_stands(known: None) -> None:
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


def test_it_is_closed_also_where_it_is_given_up_before_it_stands(known: None) -> None:
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


def test_lookup_goes_on_where_it_cannot_start(known: None, caplog: pytest.LogCaptureFixture) -> None:
    def start() -> DraftSource:
        raise OSError("no compiler today")

    source = StartingSource("started", start)
    with caplog.at_level(logging.WARNING):
        source.wait()
    assert "no compiler today" in caplog.text
    assert source.open("me", [4, 4]).propose(1).tokens == (4,)
    source.close()


@pytest.mark.slow
def test_what_was_never_compiled_is_compiled_by_another_process_once(unknown: None) -> None:
    started = Started()
    source = StartingSource("jacobi", lambda: started)
    assert source.must_compile
    source.wait()
    assert not source.must_compile
    assert kept_code.is_compiled("jacobi")
    assert isinstance(source.open("me", [1]), LookupSession)
    assert source.cost == started.cost
    source.close()


def test_who_ends_does_not_wait_for_what_is_being_compiled(
    unknown: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    never: list[DraftSource] = []
    waits = [sys.executable, "-c", "import time; time.sleep(3)"]
    monkeypatch.setattr(starting, "child_command", lambda module: waits)
    source = StartingSource("jacobi", lambda: never[0])
    source.close()
    assert source.must_compile
    assert source.open("me", [1, 1]).propose(1).tokens == (1,)
