"""One tenant's memory comes back as it was, and several processes learn from each other."""

import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from patience import PATIENCE
from toy_learner import UNSOUND, ToyLearner
from toy_memory import REQUESTS, SIZE, TENANT, closed, learnt, opened, stored, teach, text

import anespec.runtime.drafters.memory.database as database_module
import anespec.runtime.drafters.memory.tenant_memory as tenant_memory
from anespec.manifests.schema import MOST_TOKENS
from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.runtime.drafters.memory.database_access import DatabaseAccess
from anespec.runtime.drafters.memory.learner import MemoryFacts
from anespec.runtime.drafters.memory.request_record import LatestRequests, RequestRecord
from anespec.runtime.drafters.memory.tenant_memory import TenantMemory


def test_what_was_learnt_is_there_without_an_orderly_end(vocabulary: Path) -> None:
    teach(opened(vocabulary))
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_it_comes_back_after_each_of_many_runs(vocabulary: Path) -> None:
    told: list[tuple[NDArray[np.int32], int]] = []
    for number in range(20):
        memory = opened(vocabulary)
        assert memory.image.tobytes() == learnt(told)
        told.append((text(number, 7, number), 1))
        teach(memory, told[-1:])
        closed(memory)
    assert ToyLearner().facts(opened(vocabulary).image).requests == 20


def test_weights_come_back_without_an_image(vocabulary: Path) -> None:
    memory = opened(vocabulary)
    teach(memory)
    memory.image.view(np.int64)[3:5] = 77, -5
    right = closed(memory)
    assert stored(vocabulary)[0] is None
    assert opened(vocabulary).image.tobytes() == right
    assert opened(vocabulary, ToyLearner(version=2)).image.tobytes() == learnt(REQUESTS)


def test_an_image_takes_the_place_of_requests(vocabulary: Path, often: None) -> None:
    memory = opened(vocabulary)
    teach(memory)
    memory.image.view(np.int64)[3:5] = 77, -5
    memory.flush()
    assert opened(vocabulary).image.tobytes() == memory.image.tobytes()
    memory.image.view(np.int64)[3:5] = 0, 0
    teach(memory, REQUESTS[:2])
    closed(memory)
    image, _ = stored(vocabulary)
    assert image is not None and (image.upto, image.requests) == (7, 7)
    assert opened(vocabulary).image.tobytes() == learnt([*REQUESTS, *REQUESTS[:2]])


def test_an_image_is_written_while_the_caller_goes_on(
    vocabulary: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_memory, "SNAPSHOT_SECONDS", 0.0)
    begun, may_go_on = threading.Event(), threading.Event()
    write = MemoryDatabase.save_image

    def slow(*arguments: object) -> bool:
        begun.set()
        assert may_go_on.wait(PATIENCE)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryDatabase, "save_image", slow)
    memory = opened(vocabulary)
    teach(memory, REQUESTS[:1])
    assert begun.wait(PATIENCE)
    teach(memory, REQUESTS[1:])
    # Killed now, nothing is lost.
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)
    may_go_on.set()
    memory.flush()
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_only_its_user_may_read_the_files(vocabulary: Path, often: None) -> None:
    memory = opened(vocabulary)
    teach(memory)
    assert stat.S_IMODE(vocabulary.stat().st_mode) == 0o700
    assert {path.name for path in vocabulary.iterdir()} > {"memory.sqlite", "memory.sqlite-wal"}
    for path in vocabulary.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)
    assert {stat.S_IMODE(path.stat().st_mode) for path in vocabulary.iterdir()} == {0o600}


def test_a_log_that_was_left_is_truncated_when_the_file_is_opened(vocabulary: Path, often: None) -> None:
    log = vocabulary / "memory.sqlite-wal"
    first = opened(vocabulary)
    teach(first)
    closed(first)
    assert log.stat().st_size > 0
    again = opened(vocabulary)
    assert log.stat().st_size == 0
    assert again.image.tobytes() == learnt(REQUESTS)


def test_a_log_that_another_one_reads_is_left(vocabulary: Path, often: None) -> None:
    memory = opened(vocabulary)
    teach(memory)
    reader = sqlite3.connect(vocabulary / "memory.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM info").fetchall()
    teach(memory, REQUESTS[:1])
    memory.flush()
    assert opened(vocabulary).image.tobytes() == learnt([*REQUESTS, REQUESTS[0]])
    reader.close()


def test_another_learner_learns_the_latest_requests_anew(
    vocabulary: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(vocabulary)
    teach(memory)
    memory.flush()
    teach(memory, REQUESTS[:1])
    newer = opened(vocabulary, ToyLearner(version=2))
    assert newer.image.tobytes() == learnt([*REQUESTS, REQUESTS[0]])
    newer.flush()
    assert opened(vocabulary, ToyLearner(version=2)).image.tobytes() == newer.image.tobytes()
    larger = opened(vocabulary, ToyLearner(version=2), size=2 * SIZE)
    assert larger.image.nbytes == 2 * SIZE
    assert ToyLearner().facts(larger.image).requests == 6
    monkeypatch.setattr(tenant_memory, "MAX_RELEARNT_BYTES", 28)
    assert opened(vocabulary, ToyLearner(version=3)).image.tobytes() == learnt([*REQUESTS[3:], REQUESTS[0]])


def test_several_processes_learn_what_each_other_has_written(vocabulary: Path, often: None) -> None:
    first, second = opened(vocabulary), opened(vocabulary)
    teach(first, REQUESTS[:2])
    teach(second, REQUESTS[2:3])
    assert second.image.tobytes() == learnt(REQUESTS[:3])
    teach(first, REQUESTS[3:4])
    assert first.image.tobytes() == learnt([*REQUESTS[:2], *REQUESTS[2:4]])
    first.flush()
    second.flush()
    assert second.image.tobytes() == learnt(REQUESTS[:4])
    teach(second, REQUESTS[4:])
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_an_image_that_has_learnt_less_takes_no_place(vocabulary: Path, often: None) -> None:
    first, second = opened(vocabulary), opened(vocabulary)
    teach(first, REQUESTS[:1])
    late = first._position
    teach(second, REQUESTS[1:])
    second.flush()
    facts = ToyLearner().facts(first.image)
    assert first._access.write(lambda database: database.save_image(first.image, late, "toy", 1, facts))
    image, _ = stored(vocabulary)
    assert image is not None and image.upto == 5
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_an_image_whose_parts_another_process_removed_does_not_count(
    vocabulary: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PART_BYTES", 1024)
    first, second = opened(vocabulary), opened(vocabulary)
    teach(first)
    drop = MemoryDatabase._drop_images
    execute = MemoryDatabase._execute

    def interfere(self: MemoryDatabase, statement: str, *values: object) -> object:
        if statement.startswith("INSERT INTO parts") and values[0] == (1 << 20) + 2:
            second._access.write(lambda database: drop(database, 1, 0) or True)
        return execute(self, statement, *values)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDatabase, "_execute", interfere)
        patch.setattr(database_module, "BUSY_SECONDS", 0.0)
        first.save()
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)
    first.flush()
    image, _ = stored(vocabulary)
    assert image is not None and image.upto == 5
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_a_copy_is_whole_while_others_learn(vocabulary: Path, often: None) -> None:
    memory = opened(vocabulary)
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            with memory.lock:
                memory.image.view(np.int64)[3:5] += 1

    learning = threading.Thread(target=go_on)
    learning.start()
    try:
        for each in REQUESTS:
            teach(memory, [each])
            memory.flush()
            weights = opened(vocabulary).image.view(np.int64)[3:5]
            assert weights[0] == weights[1]
    finally:
        stop.set()
        learning.join()


def test_the_latest_requests_are_bounded(
    vocabulary: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TEXT_BYTES", 2000)
    memory = opened(vocabulary)
    for number in range(100):
        teach(memory, [(np.full(30, number, np.int32), 1)])
    assert len(stored(vocabulary)[1]) == 100, "no image has learnt them yet"
    memory.flush()
    assert [int(each.text[0]) for each in stored(vocabulary)[1]] == [*range(84, 100)]
    assert opened(vocabulary).image.tobytes() == memory.image.tobytes()


def test_what_a_learner_says_of_its_image_costs_nothing(vocabulary: Path, often: None) -> None:
    class Boastful(ToyLearner):
        def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
            return MemoryFacts(np.int64(-7), 1 << 80, 3, 4)  # type: ignore[arg-type]

    memory = opened(vocabulary, Boastful())
    teach(memory)
    memory.flush()
    image, _ = stored(vocabulary)
    assert image is not None and (image.nodes, image.room) == (0, 1 << 53)
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_what_makes_the_learner_fail_is_not_learnt_again(
    vocabulary: Path, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Choosy(ToyLearner):
        def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
            if text.max() > 30:
                raise IndexError("no such token")
            yield from super().fold(image, text, answer)

    teach(opened(vocabulary))
    memory = opened(vocabulary, Choosy())
    assert memory.image.tobytes() == learnt([])
    assert len(caplog.messages) == 1
    teach(memory, REQUESTS[:2])
    memory.flush()
    assert opened(vocabulary, Choosy()).image.tobytes() == learnt(REQUESTS[:2])


@pytest.mark.parametrize("write", [TenantMemory.save, TenantMemory._write_weights])
def test_weights_that_are_no_numbers_are_learnt_anew(vocabulary: Path, write: object) -> None:
    memory = opened(vocabulary)
    teach(memory)
    memory.image.view(np.int64)[3] = UNSOUND
    write(memory)  # type: ignore[operator]
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


def test_without_a_database_nothing_waits() -> None:
    memory = TenantMemory(TENANT, ToyLearner(), SIZE, DatabaseAccess(None, None))
    teach(memory)
    memory.flush()
    assert memory.image.tobytes() == learnt(REQUESTS) and not memory._waiting


def test_no_more_of_a_long_request_is_kept_than_its_end() -> None:
    whole = np.arange(200_000, dtype=np.int32)
    kept = RequestRecord.of(whole, 199_000)
    assert (kept.text[-1], len(kept.text), kept.answer) == (199_999, 65_536, 64_536)
    assert RequestRecord.of(whole, 5).answer == 0


@given(st.lists(st.integers(0, MOST_TOKENS - 1), min_size=1), st.integers(0, 40))
def test_a_request_comes_back_from_its_bytes(tokens: list[int], answer: int) -> None:
    record = RequestRecord(np.array(tokens, np.int32), min(answer, len(tokens)))
    again = RequestRecord.of_bytes(record.tokens, record.answer)
    assert again is not None and (again.text.tolist(), again.answer) == (tokens, record.answer)


@pytest.mark.parametrize(
    ("tokens", "answer"),
    [(b"", 0), (b"\0", 0), (bytes(4), 2), (bytes(4), -1), (b"\xff" * 4, 0), ("text", 0), (bytes(4), "0"),
     (None, 0), (bytes(4), None), (b"\0\0\x40\0", 0)],
)  # fmt: skip
def test_bytes_that_are_no_request_are_none(tokens: object, answer: object) -> None:
    """Tokens that no vocabulary has cannot be told apart in a table of words, which takes ever longer."""
    assert RequestRecord.of_bytes(tokens, answer) is None


@given(st.lists(st.integers(1, 20)), st.integers(0, 200))
def test_the_latest_requests_have_at_most_so_many_bytes(lengths: list[int], most: int) -> None:
    kept, told = LatestRequests(most), [RequestRecord(np.zeros(each, np.int32), 0) for each in lengths]
    for each in told:
        kept.add(each)
    assert sum(each.text.nbytes for each in kept.records) <= most
    assert kept.records == told[len(told) - len(kept) :]
